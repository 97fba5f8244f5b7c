// SPDX-License-Identifier: Apache-2.0
#include "plan/slot_owners.h"

namespace sherd {

SlotOwners::SlotOwners(const Program& program, HappensBefore& order)
    : program_(program),
      order_(order),
      slots_(program.slots().size()),
      owners_(program.slots().size()) {
  const auto& slots = program.slots();
  for (const auto& slot : slots) {
    auto& others = overlapping_.emplace_back();
    for (size_t other = 0; other < slots.size(); ++other) {
      const bool apart = slots[other].offset + slots[other].bytes <= slot.offset ||
                         slot.offset + slot.bytes <= slots[other].offset;
      if (!apart || &slots[other] == &slot) others.push_back(static_cast<int32_t>(other));
    }
  }
}

void SlotOwners::own(int32_t slot, const SlotOwner& owner) {
  const auto name = [&](const SlotOwner& one) { return program_.units()[index(one.unit)].name; };
  for (const int32_t other : overlapping_[index(slot)]) {
    const auto& holder = owners_[index(other)];
    if (holder.kind == SlotOwner::Kind::none) continue;
    refuse(
        "two live owners: '", name(owner), "' takes ", text_of(slot), " while '", name(holder),
        "' still holds ", text_of(other));
  }
  owners_[index(slot)] = owner;
}

void SlotOwners::read(int32_t slot) {
  for (const int32_t other : overlapping_[index(slot)]) {
    if (other == slot) continue;
    order_.require_before(slots_[index(other)].write, [&] { return text_of(other); });
  }
  order_.read(slots_[index(slot)], [&] { return text_of(slot); });
}

void SlotOwners::write(int32_t slot) {
  for (const int32_t other : overlapping_[index(slot)]) {
    if (other == slot) continue;
    const auto name = [&] { return text_of(other); };
    order_.require_before(slots_[index(other)].write, name);
    for (const auto& earlier : slots_[index(other)].reads) order_.require_before(earlier, name);
  }
  order_.write(slots_[index(slot)], [&] { return text_of(slot); });
}

std::string SlotOwners::text_of(int32_t slot) const {
  return text("slot '", program_.slots()[index(slot)].name, "'");
}

}  // namespace sherd
