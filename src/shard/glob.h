// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// Returns whether a name matches a pattern, in which '*' matches any text, also none.
bool matches_glob(std::string_view pattern, std::string_view name);

/// Returns a few of the names in quotes, for an error about a pattern that matches none of them.
std::string some_names(const std::vector<std::string>& names);

}  // namespace sherd
