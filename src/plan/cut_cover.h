// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/plan/cut.h"

namespace sherd {

/// A part of a parameter, and the lines of ranks that hold it: each is named by its first rank.
struct HeldPart {
  std::vector<IndexRange> ranges;
  std::vector<int64_t> lines;
};

/// Returns the parts with those of equal ranges as one, and the lines of each in ascending order.
std::vector<HeldPart> join_equal_parts(std::vector<HeldPart> parts);

/// Returns what is wrong with the distinct parts of a parameter, and what to do; nothing if each
/// index along the dim is in one of them, and each part is on as many lines as the others.
/// `shape`: of the whole.
std::optional<std::string> fault_of_parts(
    const std::vector<int64_t>& shape, int64_t dim, const std::vector<HeldPart>& parts);

}  // namespace sherd
