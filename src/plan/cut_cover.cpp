// SPDX-License-Identifier: Apache-2.0
#include "plan/cut_cover.h"

#include <algorithm>
#include <utility>

#include "plan/text.h"

namespace sherd {
namespace {

/// A range of a part, and the first rank that has it.
struct HeldRange {
  IndexRange range;
  int64_t rank = 0;
};

std::vector<HeldRange> sorted_ranges(const std::vector<HeldPart>& parts) {
  std::vector<HeldRange> result;
  for (const auto& part : parts) {
    for (const auto& range : part.ranges) result.push_back({range, part.rank});
  }
  std::sort(result.begin(), result.end(), [](const HeldRange& one, const HeldRange& other) {
    return std::pair(one.range.begin, one.rank) < std::pair(other.range.begin, other.rank);
  });
  return result;
}

}  // namespace

std::optional<std::string> fault_of_parts(
    const std::vector<int64_t>& shape, int64_t dim, const std::vector<HeldPart>& parts) {
  const auto of = [&](int64_t begin, int64_t end) {
    return to_text(Cut{shape, dim, {{begin, end}}});
  };
  HeldRange before;
  const auto missing_before = [&](int64_t next) -> std::optional<std::string> {
    if (next <= before.range.end) return std::nullopt;
    return text(
        "no rank has ", of(before.range.end, next),
        ": the parts of all ranks together must have each index; correct the cuts");
  };
  for (const auto& held : sorted_ranges(parts)) {
    const auto [begin, end] = held.range;
    if (auto missing = missing_before(begin)) return missing;
    if (begin < before.range.end) {
      return text(
          of(begin, std::min(end, before.range.end)), " are in the parts of rank ", before.rank,
          " and rank ", held.rank,
          ", whose gradients are not added: put ranks with the same part on the parameter's "
          "data-parallel axes (Mesh::flatten), or correct the cuts");
    }
    before = held;
  }
  return missing_before(shape[static_cast<size_t>(dim)]);
}

}  // namespace sherd
