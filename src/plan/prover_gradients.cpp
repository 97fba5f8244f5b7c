// SPDX-License-Identifier: Apache-2.0
#include "plan/group_shape.h"
#include "plan/prover.h"

namespace sherd {

void Prover::write_gradients(int32_t number) {
  const auto& unit_spec = spec(number);
  auto& unit = state(number);
  if (unit.complete) refuse("gradients of '", unit_spec.name, "' come after their reduction");
  for (size_t group = 0; group < unit_spec.groups.size(); ++group) {
    const auto& group_spec = unit_spec.groups[group];
    if (!group_spec.trainable) continue;
    auto& gradient = unit.groups[group].gradient;
    if (!gradient_sharded(group_spec)) {
      write_gradient(number, group);
      if (gradient.inner_done || gradient.staged != kNone) {
        refuse("gradients of '", group_spec.name, "' come after their reduction");
      }
      if (!gradient.pending) ++gradient.contributions;
    } else {
      if (!unit.opened) refuse("'", unit_spec.name, "' has no slot for its gradients");
      slots_.write(program_.slots_of(number).gradients);
    }
    gradient.pending = true;
  }
}

void Prover::open(const Instruction& instruction) {
  require_slot(instruction, program_.slots_of(instruction.unit).gradients);
  slots_.own(instruction.slot, SlotOwner::gradients_of(instruction.unit));
  slots_.write(instruction.slot);
  state(instruction.unit).opened = true;
}

/// The main gradient is next to be reduced over this axis.
bool Prover::in_turn(const GradientState& gradient, bool inner) {
  if (gradient.contributions == 0) return false;
  return inner ? !gradient.inner_done : gradient.divided && !gradient.outer_done;
}

void Prover::stage(const Instruction& instruction) {
  const auto& group_spec = spec(instruction.unit).groups[index(instruction.group)];
  auto& gradient = state(instruction.unit).groups[index(instruction.group)].gradient;
  const bool inner = instruction.axis != AxisKind::outer;
  if (!in_turn(gradient, inner) || gradient.staged != kNone) {
    refuse("copies the main gradient of '", group_spec.name, "' out of turn");
  }
  const int64_t elements = inner ? group_spec.elements : inner_part(group_spec, Role::optimizer);
  if (instruction.slot == kNone ||
      program_.slots()[index(instruction.slot)].bytes < elements * group_spec.bytes.reduce) {
    refuse("has no room to copy the main gradient of '", group_spec.name, "'");
  }
  read_gradient(instruction.unit, index(instruction.group));
  slots_.own(instruction.slot, {SlotOwner::Kind::stage, instruction.unit, instruction.group});
  slots_.write(instruction.slot);
  gradient.staged = instruction.slot;
}

/// Gradients of the slot where they are sharded over the axis, else the main gradient, directly or
/// staged.
void Prover::reduce(const Instruction& instruction) {
  const auto& group_spec = spec(instruction.unit).groups[index(instruction.group)];
  auto& unit = state(instruction.unit);
  auto& gradient = unit.groups[index(instruction.group)].gradient;
  const bool inner = instruction.axis == AxisKind::inner;
  if (unit.computed != unit.calls) {
    refuse("reduces '", group_spec.name, "' before its gradients are complete");
  }
  unit.complete = true;
  if (inner ? gradient_sharded(group_spec) : gradient_sharded_outer(group_spec)) {
    return reduce_in_slot(instruction);
  }
  if (!in_turn(gradient, inner)) {
    refuse("reduces the main gradient of '", group_spec.name, "' out of turn");
  }
  require_slot(instruction, gradient.staged);
  if (group_spec.reduces_in_place) {
    write_gradient(instruction.unit, index(instruction.group));
  } else {
    if (gradient.staged == kNone) {
      refuse("reduces '", group_spec.name, "' without a copy in the reduce dtype");
    }
    slots_.write(instruction.slot);
  }
  (inner ? gradient.inner_done : gradient.outer_done) = true;
  gradient.pending = false;
}

void Prover::reduce_in_slot(const Instruction& instruction) {
  const auto& name = spec(instruction.unit).groups[index(instruction.group)].name;
  auto& gradient = state(instruction.unit).groups[index(instruction.group)].gradient;
  const bool inner = instruction.axis == AxisKind::inner;
  require_slot(instruction, program_.slots_of(instruction.unit).gradients);
  if (!slots_.owns(instruction.slot, SlotOwner::gradients_of(instruction.unit)) ||
      !gradient.pending) {
    refuse("reduces '", name, "' before its gradients are there");
  }
  if (inner ? gradient.reduced : !gradient.reduced || gradient.sent) {
    refuse("reduces '", name, "' over the axes in the wrong order");
  }
  slots_.write(instruction.slot);
  (inner ? gradient.reduced : gradient.sent) = true;
}

void Prover::accumulate(const Instruction& instruction) {
  const auto& group_spec = spec(instruction.unit).groups[index(instruction.group)];
  write_gradient(instruction.unit, index(instruction.group));
  const bool outer = instruction.axis == AxisKind::outer;
  if (outer ? gradient_sharded_outer(group_spec) : gradient_sharded(group_spec)) {
    return accumulate_slot(instruction);
  }
  auto& gradient = state(instruction.unit).groups[index(instruction.group)].gradient;
  require_slot(instruction, gradient.staged);
  if (!(outer ? gradient.outer_done && gradient.staged != kNone : gradient.inner_done)) {
    refuse("divides '", group_spec.name, "' before it is reduced");
  }
  if (!outer && gradient.divided) refuse("divides '", group_spec.name, "' twice");
  if (!instruction.overwrite) {
    refuse("adds '", group_spec.name, "' to the gradients that it was reduced from");
  }
  if (gradient.staged != kNone) {
    slots_.read(gradient.staged);
    slots_.disown(gradient.staged);
    gradient.staged = kNone;
  }
  gradient.divided = true;
}

/// This pass's gradients, reduced, leave their slot.
void Prover::accumulate_slot(const Instruction& instruction) {
  const auto& group_spec = spec(instruction.unit).groups[index(instruction.group)];
  auto& gradient = state(instruction.unit).groups[index(instruction.group)].gradient;
  require_slot(instruction, program_.slots_of(instruction.unit).gradients);
  if (!gradient.reduced || (gradient_sharded_outer(group_spec) && !gradient.sent)) {
    refuse("adds '", group_spec.name, "' to the main gradient before it is reduced");
  }
  if (instruction.overwrite && gradient.contributions > 0) {
    refuse("overwrites earlier gradients of '", group_spec.name, "'");
  }
  if (!instruction.overwrite && gradient.contributions == 0) {
    refuse("adds '", group_spec.name, "' to gradients of the last step");
  }
  if (gradient.staged != kNone || gradient.outer_done) {
    refuse("adds '", group_spec.name, "' to a main gradient that is reduced already");
  }
  slots_.read(instruction.slot);
  ++gradient.contributions;
  gradient.pending = gradient.reduced = gradient.sent = false;
  gradient.divided = true;
  close_slot(instruction.unit);
}

/// The slot is free when the last of the unit's groups has left it.
void Prover::close_slot(int32_t number) {
  auto& unit = state(number);
  for (size_t group = 0; group < unit.groups.size(); ++group) {
    const auto& group_spec = spec(number).groups[group];
    const bool in_slot = group_spec.trainable && gradient_sharded(group_spec);
    if (in_slot && unit.groups[group].gradient.pending) return;
  }
  slots_.disown(program_.slots_of(number).gradients);
  unit.opened = false;
}

void Prover::check_complete(const GroupSpec& group, const GradientState& gradient) const {
  if (gradient.contributions != passes_) {
    refuse(
        "the main gradient of '", group.name, "' holds ", gradient.contributions, " of ", passes_,
        " passes at the update");
  }
  const bool inner = gradient_sharded(group) || gradient.inner_done;
  const bool outer = !group.has_outer || gradient_sharded_outer(group) || gradient.outer_done;
  if (!inner || !gradient.divided || !outer || gradient.staged != kNone) {
    refuse("the reduction of '", group.name, "' is not drained before the update");
  }
}

}  // namespace sherd
