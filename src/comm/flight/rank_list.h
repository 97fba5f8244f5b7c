// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sherd {

/// Returns ranks as a short text: "0:1:8" for the 8 ranks from 0 on in steps of 1, such pieces with
/// commas. The ranks along a mesh axis are one piece.
std::string short_rank_list(std::span<const int64_t> ranks);
/// Returns the ranks of such a text; none if it is none.
std::vector<int64_t> parse_rank_list(const std::string& text);

}  // namespace sherd
