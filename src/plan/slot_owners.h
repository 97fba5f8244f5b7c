// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "plan/happens_before.h"

namespace sherd {

/// The owner of a slot: a unit's parameters, their transposed copies, its gradients, or the staged
/// copy of a group's gradients.
struct SlotOwner {
  enum class Kind : uint8_t { none, parameters, transposed, gradients, stage };
  Kind kind{};
  int32_t unit = kNone;
  int32_t group = kNone;  // of a copy
  friend bool operator==(const SlotOwner&, const SlotOwner&) = default;

  static SlotOwner parameters_of(int32_t unit) { return {Kind::parameters, unit}; }
  static SlotOwner transposed_of(int32_t unit) { return {Kind::transposed, unit}; }
  static SlotOwner gradients_of(int32_t unit) { return {Kind::gradients, unit}; }
};

/// The owner of each slot, and the last accesses to it. An access to a slot counts for every slot
/// that shares a byte with it.
class SlotOwners {
 public:
  SlotOwners(const Program& program, HappensBefore& order);

  /// Takes the slot for an owner. Refuses if another one has it.
  void own(int32_t slot, const SlotOwner& owner);
  void disown(int32_t slot) { owners_[index(slot)] = {}; }
  bool owns(int32_t slot, const SlotOwner& owner) const {
    return slot != kNone && owners_[index(slot)] == owner;
  }
  void read(int32_t slot);
  void write(int32_t slot);
  std::string text_of(int32_t slot) const;

 private:
  const Program& program_;
  HappensBefore& order_;
  std::vector<std::vector<int32_t>> overlapping_;  // by slot: those that share a byte with it
  std::vector<Resource> slots_;
  std::vector<SlotOwner> owners_;
};

}  // namespace sherd
