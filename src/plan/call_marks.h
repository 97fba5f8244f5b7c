// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

/// A call that this rank made in a forward.
struct MadeCall {
  int32_t position = kNone;  ///< position of the call in the order of the pass
  int64_t recompute = 0;     ///< number of the outermost recompute around it; 0: none
};

// Note [Calls that only some ranks make]
// An order has a position for every call that any rank makes. For each position a rank marks
// whether it made the call, under a recompute or outside, and whether one recompute spans this
// position and the next. The order has a mark if at least one rank has it (the maximum over ranks),
// so a rank that did not call a unit takes the unit's recompute from the ranks that did.

/// One rank's marks of the calls of an order, as plain numbers that can be sent. The element-wise
/// maximum of all ranks' marks gives the marks of the order.
class CallMarks {
 public:
  /// Returns the marks of a rank that made these calls.
  static CallMarks of(const CallOrder& order, const std::vector<MadeCall>& made);
  /// Returns the marks of the recomputes that the order has.
  static CallMarks of_recomputes(const CallOrder& order);
  /// Returns the marks of a rank that made no call.
  static CallMarks none(const CallOrder& order);
  explicit CallMarks(std::vector<int64_t> values) : values_(std::move(values)) {}

  const std::vector<int64_t>& values() const { return values_; }
  /// Returns whether every call was made, outside any recompute.
  bool is_plain() const;
  bool is_made(size_t position) const { return has(position, kMade); }
  bool is_inside(size_t position) const { return has(position, kInside); }
  bool is_outside(size_t position) const { return has(position, kOutside); }
  /// Returns whether one recompute spans this position and the next.
  bool is_joined(size_t position) const { return has(position, kJoined); }
  /// Returns the first position that is called both inside and outside a recompute.
  std::optional<size_t> contradiction() const;
  /// Returns the element-wise maximum of both.
  CallMarks joined_with(const CallMarks& other) const;

 private:
  enum Mark : size_t { kMade, kInside, kOutside, kJoined, kMarks };
  bool has(size_t position, Mark mark) const { return values_[position * kMarks + mark] != 0; }
  int64_t& at(int32_t position, Mark mark) {
    return values_[static_cast<size_t>(position) * kMarks + mark];
  }
  std::vector<int64_t> values_;
};

size_t count_calls(const CallOrder& order);
CallOrder without_recomputes(CallOrder order);
/// Returns the order with the recomputes that the marks have, each numbered by its first position.
CallOrder with_recomputes(CallOrder order, const CallMarks& marks);
/// Drops calls that no rank made if their unit is called at another position, to which it has
/// moved. Also returns the new position of each call; kNone: dropped.
std::pair<CallOrder, std::vector<int32_t>> without_skipped(
    const CallOrder& order, const CallMarks& marks, size_t units);

}  // namespace sherd
