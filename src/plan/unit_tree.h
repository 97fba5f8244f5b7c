// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

/// A call of a unit, with the calls it makes.
struct Call {
  int32_t unit = 0;
  int32_t parent = kNone;  ///< position
  int32_t recompute = kNone;
  std::vector<int32_t> children{};  ///< positions
};

/// An order as a tree of calls, and the order of the backward that follows from it.
class UnitTree {
 public:
  /// Throws std::invalid_argument for calls that don't nest or name no unit.
  UnitTree(const CallOrder& order, int32_t units);

  const std::vector<Call>& calls() const { return calls_; }
  const Call& call(int32_t position) const { return calls_[static_cast<size_t>(position)]; }
  bool is_leaf(int32_t position) const { return call(position).children.empty(); }
  /// Returns whether the unit calls other units anywhere: it stays gathered while they run.
  bool nests(int32_t unit) const { return nests_[static_cast<size_t>(unit)]; }

  struct Event {
    Boundary::Kind kind{};
    int32_t position = 0;
  };
  const std::vector<Event>& forward() const { return forward_; }
  /// Returns the calls in reverse. Several calls under one recompute are first entered again in the
  /// order of the forward, and stay gathered until their own backward.
  const std::vector<Event>& backward() const { return backward_; }

 private:
  void add_backward(const std::vector<int32_t>& siblings);
  void add_recompute(int32_t position);

  std::vector<Call> calls_;
  std::vector<bool> nests_;
  std::vector<Event> forward_;
  std::vector<Event> backward_;
};

}  // namespace sherd
