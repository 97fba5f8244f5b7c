// SPDX-License-Identifier: Apache-2.0
#include "plan/slot_colouring.h"

#include <algorithm>

#include "sherd/plan/program.h"

namespace sherd {

std::vector<int32_t> colour_slots(const std::vector<Lifetime>& lifetimes, int32_t units) {
  std::vector<std::vector<const Lifetime*>> of_unit(static_cast<size_t>(units));
  std::vector<int32_t> by_appearance;
  for (const auto& lifetime : lifetimes) {
    auto& mine = of_unit[static_cast<size_t>(lifetime.unit)];
    if (mine.empty()) by_appearance.push_back(lifetime.unit);
    mine.push_back(&lifetime);
  }
  const auto collide = [&](int32_t one, int32_t other) {
    const auto& ours = of_unit[static_cast<size_t>(one)];
    const auto& theirs = of_unit[static_cast<size_t>(other)];
    return std::any_of(ours.begin(), ours.end(), [&](const Lifetime* a) {
      return std::any_of(theirs.begin(), theirs.end(), [&](const Lifetime* b) {
        return a->section == b->section && a->begin <= b->end && b->begin <= a->end;
      });
    });
  };
  std::vector<int32_t> slot_of(static_cast<size_t>(units), kNone);
  std::vector<std::vector<int32_t>> owners;  // of each slot
  for (const int32_t unit : by_appearance) {
    const auto free = std::find_if(owners.begin(), owners.end(), [&](const auto& others) {
      return std::none_of(
          others.begin(), others.end(), [&](int32_t other) { return collide(unit, other); });
    });
    slot_of[static_cast<size_t>(unit)] = static_cast<int32_t>(free - owners.begin());
    if (free == owners.end()) {
      owners.push_back({unit});
    } else {
      free->push_back(unit);
    }
  }
  return slot_of;
}

}  // namespace sherd
