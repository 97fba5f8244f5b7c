// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace sherd {

/// '*' stands for any run of characters.
bool matches_glob(std::string_view pattern, std::string_view name);

}  // namespace sherd
