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
  int32_t position = kNone;  ///< of the call, in the order of the pass
  int64_t recompute = 0;     ///< number of the outermost recompute around it; 0: none
};

// Note [Calls that only some ranks make]
// An order has a place for every call that any rank makes. For each place a rank says whether it
// made the call, under a recompute or outside, and whether one recompute spans this place and the
// next. What is true on one rank is true for the order: the largest of the ranks' marks. So a rank
// that had nothing for a unit leaves the unit's recompute to those that had.

/// One rank's marks of the calls of an order, as plain numbers that can be sent. The maximum of all
/// ranks' marks, one by one, is what holds for the order.
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
  /// Whether every call was made, outside any recompute.
  bool is_plain() const;
  bool is_made(size_t position) const { return has(position, kMade); }
  bool is_inside(size_t position) const { return has(position, kInside); }
  bool is_outside(size_t position) const { return has(position, kOutside); }
  /// Whether one recompute spans this position and the next.
  bool is_joined(size_t position) const { return has(position, kJoined); }
  /// Returns the first position that is called both inside and outside a recompute.
  std::optional<size_t> contradiction() const;
  /// Returns the maximum of both, one by one.
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
/// The order with recomputes where marks have them, each numbered by its first position.
CallOrder with_recomputes(CallOrder order, const CallMarks& marks);
/// Drops calls that no rank made, if their unit is called at another position: there the unit has
/// moved. Also returns the new position of each call; kNone: dropped.
std::pair<CallOrder, std::vector<int32_t>> without_skipped(
    const CallOrder& order, const CallMarks& marks, size_t units);

}  // namespace sherd
