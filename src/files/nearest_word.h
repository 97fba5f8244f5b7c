// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// The word that somebody may have meant: fewest letters to change, add, drop or swap, at most a
/// third of them.
std::optional<std::string> nearest_word(
    const std::string& word, const std::vector<std::string>& words);

}  // namespace sherd
