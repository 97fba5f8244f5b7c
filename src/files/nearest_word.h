// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// Returns the word that was probably meant: the one with the fewest letters to change, add, drop
/// or swap, at most a third of them.
SHERD_API std::optional<std::string> nearest_word(
    const std::string& word, const std::vector<std::string>& words);

}  // namespace sherd
