// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/plan/cut.h"

namespace sherd {

/// A part of a parameter, and the first rank of the line of ranks that holds it.
struct HeldPart {
  std::vector<IndexRange> ranges;
  int64_t rank = 0;
};

/// Returns what is wrong with the parts of a parameter, one for each line, and what to do; nothing
/// if each index along the dim is in exactly one of them. `shape`: of the whole.
std::optional<std::string> fault_of_parts(
    const std::vector<int64_t>& shape, int64_t dim, const std::vector<HeldPart>& parts);

}  // namespace sherd
