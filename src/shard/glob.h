// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace sherd {

/// Returns whether a name matches a pattern, in which '*' matches any text, also none.
bool matches_glob(std::string_view pattern, std::string_view name);

}  // namespace sherd
