// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd::testing {

/// A source of decisions: returns a number below its argument. It must return 0 again and again
/// once it is exhausted.
using Choose = std::function<uint32_t(uint32_t)>;

/// A call of a unit with the calls that it makes itself.
struct Call {
  int32_t unit = 0;
  int64_t recompute = 0;  ///< number of the outermost recompute around it; 0: none
  std::vector<Call> calls{};
};

/// Returns the boundaries of a forward with this order, without instructions.
inline Section forward_section(const CallOrder& order) {
  Section section;
  std::vector<int32_t> open;
  int32_t next = 0;
  for (const auto& event : order) {
    if (event.enter) open.push_back(next++);
    const auto kind = event.enter ? Boundary::Kind::enter : Boundary::Kind::exit;
    section.boundaries.push_back({.kind = kind, .position = open.back(), .unit = event.unit});
    if (!event.enter) open.pop_back();
  }
  return section;
}

/// Returns the order of the calls, with each recompute numbered by its first position.
inline CallOrder order_of(const Call& root) {
  CallOrder order;
  std::map<int64_t, int32_t> numbers;
  int32_t next = 0;
  const std::function<void(const Call&)> add = [&](const Call& call) {
    const int32_t position = next++;
    int32_t recompute = kNone;
    if (call.recompute != 0)
      recompute = numbers.try_emplace(call.recompute, position).first->second;
    order.push_back({call.unit, true, recompute});
    for (const auto& inner : call.calls) add(inner);
    order.push_back({call.unit, false});
  };
  add(root);
  return order;
}

/// Generates orders, and calls that resemble them. A recompute spans calls that follow one another
/// within one call, and everything that these call.
class CallGenerator {
 public:
  explicit CallGenerator(Choose choose) : choose_(std::move(choose)) {}

  /// Returns a call of unit 0 with a tree below it in which no unit calls itself.
  Call tree() {
    units_ = 2 + static_cast<int32_t>(choose_(5));
    budget_ = choose_(14);
    Call root{.unit = 0};
    add_calls(root, {0});
    if (choose_(2) != 0) draw_recomputes(root);
    return root;
  }

  /// Returns the tree with some calls left out, alone or with what they call, others added, and
  /// perhaps other recomputes.
  Call changed(const Call& tree) {
    Call root{tree.unit, tree.recompute};
    rate_ = 2 + choose_(8);
    change_calls(tree, root);
    switch (choose_(4)) {
      case 0: break;
      case 1: remove_recomputes(root); break;
      default: remove_recomputes(root); draw_recomputes(root);
    }
    spread_recomputes(root);
    return root;
  }

 private:
  bool happens() { return choose_(rate_) == 1; }

  void add_calls(Call& call, const std::vector<int32_t>& open) {
    while (budget_ > 0 && choose_(4) != 0) {
      const auto unit = static_cast<int32_t>(choose_(static_cast<uint32_t>(units_)));
      --budget_;
      if (std::find(open.begin(), open.end(), unit) != open.end()) continue;
      auto inner = open;
      inner.push_back(unit);
      call.calls.push_back({unit});
      add_calls(call.calls.back(), inner);
    }
  }

  void change_calls(const Call& from, Call& to) {
    for (const auto& call : from.calls) {
      const int64_t before = to.calls.empty() ? to.recompute : to.calls.back().recompute;
      if (happens()) to.calls.push_back(unplanned(before));
      if (happens()) continue;
      if (happens()) {
        change_calls(call, to);  // left out, but not what it calls
        continue;
      }
      Call kept{call.unit, call.recompute};
      change_calls(call, kept);
      to.calls.push_back(std::move(kept));
    }
    if (happens()) to.calls.push_back(unplanned(to.recompute));
  }

  /// Any unit, the one that calls it included.
  Call unplanned(int64_t recompute) {
    Call call{static_cast<int32_t>(choose_(static_cast<uint32_t>(units_) + 1)), recompute};
    for (uint32_t i = choose_(3); i > 0; --i) {
      call.calls.push_back({static_cast<int32_t>(choose_(static_cast<uint32_t>(units_)))});
    }
    return call;
  }

  static void remove_recomputes(Call& call) {
    call.recompute = 0;
    for (auto& inner : call.calls) remove_recomputes(inner);
  }

  void draw_recomputes(Call& root) {
    if (choose_(16) == 1) root.recompute = ++recomputes_;
    draw_recomputes_within(root);
    spread_recomputes(root);
  }

  void draw_recomputes_within(Call& call) {
    int64_t current = 0;
    for (auto& inner : call.calls) {
      switch (choose_(4)) {
        case 1: current = ++recomputes_; break;
        case 2: current = 0; break;
        default: break;
      }
      inner.recompute = current;
      draw_recomputes_within(inner);
    }
  }

  static void spread_recomputes(Call& call) {
    for (auto& inner : call.calls) {
      if (call.recompute != 0) inner.recompute = call.recompute;
      spread_recomputes(inner);
    }
  }

  Choose choose_;
  int32_t units_ = 2;
  uint32_t budget_ = 0;
  uint32_t rate_ = 2;
  int64_t recomputes_ = 1000;
};

}  // namespace sherd::testing
