// SPDX-License-Identifier: Apache-2.0
#include "plan/unit_tree.h"

#include <stdexcept>

#include "plan/text.h"

namespace sherd {

UnitTree::UnitTree(const CallOrder& order, int32_t units) : nests_(static_cast<size_t>(units)) {
  std::vector<int32_t> open;
  std::vector<int32_t> roots;
  for (const auto& visit : order) {
    if (visit.unit < 0 || visit.unit >= units) {
      throw std::invalid_argument(
          text("[plan.program] the order names unit ", visit.unit, " of ", units));
    }
    if (visit.enter) {
      const auto position = static_cast<int32_t>(calls_.size());
      const int32_t parent = open.empty() ? kNone : open.back();
      calls_.push_back({visit.unit, parent, visit.recompute, {}});
      if (parent == kNone) {
        roots.push_back(position);
      } else {
        calls_[static_cast<size_t>(parent)].children.push_back(position);
        nests_[static_cast<size_t>(call(parent).unit)] = true;
      }
      open.push_back(position);
      forward_.push_back({Boundary::Kind::enter, position});
      continue;
    }
    if (open.empty() || call(open.back()).unit != visit.unit) {
      throw std::invalid_argument(
          text("[plan.program] the order leaves unit ", visit.unit, " without having entered it"));
    }
    forward_.push_back({Boundary::Kind::exit, open.back()});
    open.pop_back();
  }
  if (!open.empty()) {
    throw std::invalid_argument(
        text("[plan.program] the order never leaves unit ", call(open.back()).unit));
  }
  add_backward(roots);
}

void UnitTree::add_backward(const std::vector<int32_t>& siblings) {
  size_t after = siblings.size();  // one past those still to do
  while (after > 0) {
    // Neighbours under one recompute are recomputed together.
    size_t begin = after - 1;
    const int32_t region = call(siblings[begin]).recompute;
    const int32_t parent = call(siblings[begin]).parent;
    const bool starts_here =
        region != kNone && (parent == kNone || call(parent).recompute != region);
    while (starts_here && begin > 0 && call(siblings[begin - 1]).recompute == region) --begin;
    const bool several = starts_here && (after - begin > 1 || !is_leaf(siblings[begin]));
    for (size_t i = begin; several && i < after; ++i) add_recompute(siblings[i]);
    for (size_t i = after; i-- > begin;) {
      backward_.push_back({Boundary::Kind::enter, siblings[i]});
      add_backward(call(siblings[i]).children);
      backward_.push_back({Boundary::Kind::exit, siblings[i]});
    }
    after = begin;
  }
}

void UnitTree::add_recompute(int32_t position) {
  backward_.push_back({Boundary::Kind::recompute, position});
  for (const int32_t child : call(position).children) add_recompute(child);
}

CallOrder order_of_tree(std::span<const int32_t> parents) {
  CallOrder order;
  const auto add = [&](const auto& self, int32_t parent) -> void {
    for (int32_t unit = 0; unit < static_cast<int32_t>(parents.size()); ++unit) {
      if (parents[static_cast<size_t>(unit)] != parent) continue;
      order.push_back({unit, true});
      self(self, unit);
      order.push_back({unit, false});
    }
  };
  add(add, kNone);
  return order;
}

}  // namespace sherd
