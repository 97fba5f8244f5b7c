// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd::testing {

/// How the groups of an example are spread, and over how many ranks.
struct Spreading {
  std::string name;
  Placement placement;
  PerAxis<int64_t> sizes{2, 1};
  bool has_outer = false;
};

inline Spreading over_one_axis(Strategy strategy, int64_t ranks = 2) {
  return {to_text(strategy), Placement(strategy), {ranks, 1}, false};
}

inline Spreading over_two_axes(Strategy inner, Strategy outer) {
  return {to_text(inner) + "+" + to_text(outer), Placement(inner, outer), {2, 2}, true};
}

inline GroupSpec group_of(std::string name, int64_t elements, const Spreading& spreading) {
  GroupSpec group;
  group.name = std::move(name);
  group.elements = elements;
  group.placement = spreading.placement;
  group.axis_sizes = spreading.sizes;
  group.has_outer = spreading.has_outer;
  return group;
}

/// Units "root", "u1", "u2", …, each with one group, "root.w", "u1.w", ….
inline std::vector<UnitSpec> units_of(
    int count, const Spreading& spreading, int64_t elements = 64) {
  std::vector<UnitSpec> units;
  for (int i = 0; i < count; ++i) {
    UnitSpec unit;
    unit.name = i == 0 ? "root" : "u" + std::to_string(i);
    unit.groups = {group_of(unit.name + ".w", elements, spreading)};
    units.push_back(std::move(unit));
  }
  return units;
}

/// Unit 0 calls the others, one after another.
inline CallOrder under_a_root(int count) {
  CallOrder order{{0, true}};
  for (int32_t unit = 1; unit < count; ++unit) {
    order.push_back({unit, true});
    order.push_back({unit, false});
  }
  order.push_back({0, false});
  return order;
}

}  // namespace sherd::testing
