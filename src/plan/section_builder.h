// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "plan/unit_tree.h"
#include "sherd/plan/program.h"

namespace sherd {

// Note [Which event orders what]
// Every stream is a queue; an event is an edge between two of them.
//   published      update → gathers        a gather reads what the update wrote
//   refreshed(u)   outer → gather          the inner gather reads what the outer one brought
//   gathered(u)    gather → compute        a unit computes with its parameters
//   released(s)    compute → gather        a slot is overwritten after its last reader; so is every
//                                          slot that shares a byte with it
//   computed(u)    compute → reduce        gradients are reduced when they are written
//   reduced(s), settled(u)  reduce → outer, compute   the slot may be overwritten; the drain
//   sent(s), finished(u)    outer → compute           the same for what the outer axis carries
// Events of slots outlive a section: the next owner of a slot waits for the one before it.

/// The numbers of a program's events.
class EventTable {
 public:
  EventTable(const std::vector<UnitSpec>& units, const std::vector<Slot>& slots);
  int32_t published() const { return 0; }
  int32_t refreshed(int32_t unit) const { return of_unit(unit, 0); }
  int32_t gathered(int32_t unit) const { return of_unit(unit, 1); }
  int32_t computed(int32_t unit) const { return of_unit(unit, 2); }
  int32_t settled(int32_t unit) const { return of_unit(unit, 3); }
  int32_t finished(int32_t unit) const { return of_unit(unit, 4); }
  int32_t released(int32_t slot) const { return of_slot(slot, 0); }
  int32_t reduced(int32_t slot) const { return of_slot(slot, 1); }
  int32_t sent(int32_t slot) const { return of_slot(slot, 2); }
  const std::vector<std::string>& names() const { return names_; }

 private:
  static constexpr int32_t kPerUnit = 5;
  static constexpr int32_t kPerSlot = 3;
  int32_t of_unit(int32_t unit, int32_t kind) const { return 1 + unit * kPerUnit + kind; }
  int32_t of_slot(int32_t slot, int32_t kind) const {
    return 1 + units_ * kPerUnit + slot * kPerSlot + kind;
  }
  int32_t units_;
  std::vector<std::string> names_;
};

/// The inputs from which the sections of a program are built.
struct SectionInput {
  const std::vector<UnitSpec>& units;
  const UnitTree& tree;
  const std::vector<SlotAssignment>& assignments;
  const std::vector<Slot>& slots;
  const EventTable& events;
  int64_t depth;
  MemoryKind memory;
  int32_t stage_reduce;  ///< slot where main gradients are cast for the reduction; kNone: none
  int32_t stage_outer;
};

Section build_forward(const SectionInput& input, const ForwardFlags& flags);
Section build_backward(const SectionInput& input, const BackwardFlags& flags);
Section build_update(const SectionInput& input);

}  // namespace sherd
