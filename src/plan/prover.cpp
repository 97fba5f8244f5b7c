// SPDX-License-Identifier: Apache-2.0
#include "plan/prover.h"

#include "plan/group_shape.h"

namespace sherd {

Prover::Prover(const Program& program)
    : program_(program), order_(program.events().size()), slots_(program, order_) {
  for (const auto& unit : program.units()) {
    units_.emplace_back().groups.resize(unit.groups.size());
  }
  count_calls(program.order());
}

void Prover::count_calls(const CallOrder& order) {
  for (auto& unit : units_) unit.calls = 0;
  for (const auto& visit : order) state(visit.unit).calls += visit.enter ? 1 : 0;
}

std::optional<Refusal> Prover::run(const Sequence& sequence) {
  for (const auto* section : sequence) {
    section_ = section;
    int32_t number = 0;
    try {
      begin_section();
      for (const auto& instruction : section->instructions) {
        order_.begin(instruction);
        check(instruction);
        order_.end(instruction);
        ++number;
      }
      number = kNone;
      end_section();
    } catch (const ProofFailure& failure) {
      return Refusal{section->name, number, failure.why};
    }
  }
  return std::nullopt;
}

void Prover::begin_section() {
  count_calls(program_.order(section_->train));
  const bool backward = section_->kind == Section::Kind::backward;
  if (backward) ++passes_;
  for (auto& unit : units_) {
    unit.computed = 0;
    if (!backward) continue;
    unit.complete = false;
    for (auto& group : unit.groups) group.gradient.pending = false;
  }
}

void Prover::end_section() const {
  for (size_t number = 0; number < units_.size(); ++number) {
    const auto& unit = units_[number];
    const auto& name = program_.units()[number].name;
    if (section_->kind != Section::Kind::update && unit.computed != unit.calls) {
      refuse("'", name, "' computes ", unit.computed, " times instead of ", unit.calls);
    }
    const bool may_stay =
        program_.units()[number].keep_gathered && section_->kind == Section::Kind::forward;
    if (unit.live && !may_stay) refuse("'", name, "' is gathered and never released");
    for (const auto& group : unit.groups) {
      if (group.transposed != kNone) refuse("transposed copies of '", name, "' are never released");
    }
    if (section_->kind != Section::Kind::forward && unit.opened) {
      refuse("the gradients of '", name, "' never leave their slot");
    }
  }
}

void Prover::check(const Instruction& instruction) {
  switch (instruction.action) {
    case Action::refresh: return refresh(instruction);
    case Action::gather: return gather(instruction);
    case Action::transpose: return transpose(instruction);
    case Action::wait: return wait(instruction);
    case Action::compute: return compute(instruction);
    case Action::release: return release(instruction);
    case Action::open: return open(instruction);
    case Action::stage: return stage(instruction);
    case Action::reduce: return reduce(instruction);
    case Action::accumulate: return accumulate(instruction);
    case Action::drain: return;
    case Action::update: return update();
    case Action::exchange: return exchange(instruction);
    case Action::publish: return publish();
  }
}

// ---- accesses -----------------------------------------------------------------------------------

/// Each thing has one place, whoever uses it.
void Prover::require_slot(const Instruction& instruction, int32_t expected) const {
  if (instruction.slot == expected) return;
  const auto name = [&](int32_t slot) { return slot == kNone ? "no slot" : slots_.text_of(slot); };
  refuse(
      "uses ", name(instruction.slot), " for '", spec(instruction.unit).name, "' instead of ",
      name(expected));
}

std::string Prover::of(const char* what, int32_t unit, size_t group) const {
  return text(what, " of '", spec(unit).groups[group].name, "'");
}
void Prover::read_weight(int32_t unit, size_t group) {
  order_.read(state(unit).groups[group].weight, [&] { return of("the weight", unit, group); });
}
void Prover::write_weight(int32_t unit, size_t group) {
  order_.write(state(unit).groups[group].weight, [&] { return of("the weight", unit, group); });
}
void Prover::read_gradient(int32_t unit, size_t group) {
  order_.read(state(unit).groups[group].main_gradient, [&] {
    return of("the main gradient", unit, group);
  });
}
void Prover::write_gradient(int32_t unit, size_t group) {
  order_.write(state(unit).groups[group].main_gradient, [&] {
    return of("the main gradient", unit, group);
  });
}

// ---- parameters ---------------------------------------------------------------------------------

void Prover::refresh(const Instruction& instruction) {
  const auto number = index(instruction.group);
  write_weight(instruction.unit, number);
  auto& group = state(instruction.unit).groups[number];
  const auto& group_spec = spec(instruction.unit).groups[number];
  if (instruction.axis == AxisKind::outer) {
    group.outer_version = published_;
    if (!refreshes_inner(group_spec)) group.version = published_;
  } else {
    if (refreshes_outer(group_spec) && group.outer_version != published_) {
      refuse("refreshes '", group_spec.name, "' over the inner axis before the outer one");
    }
    group.version = published_;
  }
}

void Prover::gather(const Instruction& instruction) {
  auto& unit = state(instruction.unit);
  auto& group = unit.groups[index(instruction.group)];
  const auto& group_spec = spec(instruction.unit).groups[index(instruction.group)];
  require_slot(instruction, program_.slots_of(instruction.unit).parameters);
  if (!unit.live) {
    slots_.own(instruction.slot, SlotOwner::parameters_of(instruction.unit));
    unit.live = true;
    unit.ready = unit.consumed = false;
    unit.version = published_;
  }
  if (unit.ready || group.gathered) refuse("gathers '", group_spec.name, "' twice");
  read_weight(instruction.unit, index(instruction.group));
  slots_.write(instruction.slot);
  if (group.version != published_ || published_ != main_version_) {
    refuse("gathers '", group_spec.name, "' from weights older than the main weights");
  }
  if (instruction.axis == AxisKind::outer) {
    group.gathered_outer = true;
    group.two_ways = instruction.two_ways;
    return;
  }
  if (gathers_outer(group_spec)) {
    if (!group.gathered_outer) {
      refuse("gathers '", group_spec.name, "' over the inner axis before the outer one");
    }
    if (group.two_ways != instruction.two_ways) {
      refuse("gathers other encodings of '", group_spec.name, "' over each axis");
    }
  }
  group.two_ways = instruction.two_ways;
  group.gathered = true;
}

void Prover::transpose(const Instruction& instruction) {
  auto& unit = state(instruction.unit);
  auto& group = unit.groups[index(instruction.group)];
  const auto& group_spec = spec(instruction.unit).groups[index(instruction.group)];
  const auto& slots = program_.slots_of(instruction.unit);
  require_slot(instruction, slots.transposed);
  if (!group_spec.encoding.transposes || group.transposed != kNone) {
    refuse("transposes '", group_spec.name, "' twice or for nothing");
  }
  const auto owner = SlotOwner::transposed_of(instruction.unit);
  if (!slots_.owns(instruction.slot, owner)) slots_.own(instruction.slot, owner);
  if (!gathers_inner(group_spec)) {
    if (instruction.also_reads != kNone) {
      refuse("transposes '", group_spec.name, "' from a slot, but its weight is there in full");
    }
    read_weight(instruction.unit, index(instruction.group));
    group.transposed = group.version;
  } else {
    const bool holds =
        slots_.owns(instruction.also_reads, SlotOwner::parameters_of(instruction.unit));
    if (!holds || instruction.also_reads != slots.parameters || !group.gathered) {
      refuse("transposes '", group_spec.name, "' before it is gathered");
    }
    slots_.read(instruction.also_reads);
    group.transposed = unit.version;
  }
  slots_.write(instruction.slot);
}

/// In a backward, each transposed copy is there and of the newest weights.
void Prover::read_transposed(const Instruction& instruction) {
  const bool backward = section_->kind == Section::Kind::backward;
  const int32_t slot = backward ? program_.slots_of(instruction.unit).transposed : kNone;
  if (instruction.also_reads != slot) {
    refuse("'", spec(instruction.unit).name, "' reads another slot than its transposed copies'");
  }
  if (!backward) return;
  for (size_t group = 0; group < spec(instruction.unit).groups.size(); ++group) {
    const auto& group_spec = spec(instruction.unit).groups[group];
    const auto& its = state(instruction.unit).groups[group];
    if (group_spec.encoding.transposes && its.transposed != main_version_) {
      refuse(
          "'", group_spec.name, "' has ", its.transposed == kNone ? "no" : "an old",
          " transposed copy when its unit needs it");
    }
    if (group_spec.encoding.two_ways && gathers_inner(group_spec) && !its.two_ways) {
      refuse("'", group_spec.name, "' is gathered without the encoding that its backward needs");
    }
  }
  if (slot == kNone) return;
  if (!slots_.owns(slot, SlotOwner::transposed_of(instruction.unit))) {
    refuse("'", spec(instruction.unit).name, "' does not hold ", slots_.text_of(slot));
  }
  slots_.read(slot);
}

void Prover::wait(const Instruction& instruction) {
  const auto& groups = spec(instruction.unit).groups;
  auto& unit = state(instruction.unit);
  require_slot(instruction, program_.slots_of(instruction.unit).parameters);
  for (size_t group = 0; group < groups.size(); ++group) {
    if (!gathers_inner(groups[group])) {
      read_weight(instruction.unit, group);
    } else if (!unit.groups[group].gathered) {
      refuse("'", groups[group].name, "' is not gathered when its unit needs it");
    }
  }
  if (instruction.slot != kNone) slots_.read(instruction.slot);
  read_transposed(instruction);
  unit.ready = true;
}

void Prover::compute(const Instruction& instruction) {
  const auto& unit_spec = spec(instruction.unit);
  auto& unit = state(instruction.unit);
  if (!unit.ready) refuse("'", unit_spec.name, "' computes before its parameters are there");
  for (size_t group = 0; group < unit_spec.groups.size(); ++group) {
    if (gathers_inner(unit_spec.groups[group])) {
      if (unit.version == main_version_) continue;
      refuse("'", unit_spec.name, "' computes with old weights");
    }
    read_weight(instruction.unit, group);
    if (unit.groups[group].version != main_version_) {
      refuse("'", unit_spec.groups[group].name, "' is older than its main weight");
    }
  }
  require_slot(instruction, program_.slots_of(instruction.unit).parameters);
  if (instruction.slot != kNone) {
    if (!slots_.owns(instruction.slot, SlotOwner::parameters_of(instruction.unit))) {
      refuse(
          "'", unit_spec.name, "' computes with ", slots_.text_of(instruction.slot),
          ", which it does not hold");
    }
    slots_.read(instruction.slot);
  }
  read_transposed(instruction);
  unit.consumed = true;
  ++unit.computed;
  if (section_->kind == Section::Kind::backward) write_gradients(instruction.unit);
}

void Prover::release(const Instruction& instruction) {
  auto& unit = state(instruction.unit);
  const auto& name = spec(instruction.unit).name;
  const auto& slots = program_.slots_of(instruction.unit);
  if (instruction.slot != kNone && instruction.slot == slots.transposed) {
    return release_transposed(instruction.unit);
  }
  require_slot(instruction, slots.parameters);
  if (!unit.live || !slots_.owns(instruction.slot, SlotOwner::parameters_of(instruction.unit))) {
    refuse("releases '", name, "', which does not hold its slot");
  }
  if (!unit.consumed) refuse("the gather of '", name, "' is released before anything used it");
  slots_.write(instruction.slot);  // after all readers; the next owner waits for this alone
  slots_.disown(instruction.slot);
  unit.live = unit.ready = unit.consumed = false;
  for (auto& group : unit.groups) group.gathered = group.gathered_outer = group.two_ways = false;
}

void Prover::release_transposed(int32_t number) {
  auto& unit = state(number);
  const int32_t slot = program_.slots_of(number).transposed;
  if (!slots_.owns(slot, SlotOwner::transposed_of(number))) {
    refuse("releases the transposed copies of '", spec(number).name, "', which it does not hold");
  }
  if (unit.computed == 0) {
    refuse("the transposed copies of '", spec(number).name, "' are released before their use");
  }
  slots_.write(slot);
  slots_.disown(slot);
  for (auto& group : unit.groups) group.transposed = kNone;
}

void Prover::update() {
  order_.require_rejoined();
  for (int32_t number = 0; number < std::ssize(units_); ++number) {
    auto& unit = state(number);
    if (unit.calls == 0) continue;
    for (size_t group = 0; group < unit.groups.size(); ++group) {
      const auto& group_spec = spec(number).groups[group];
      if (!group_spec.trainable) continue;
      read_gradient(number, group);
      check_complete(group_spec, unit.groups[group].gradient);
      write_weight(number, group);
      auto& its = unit.groups[group];
      its.gradient = {};
      if (group_spec.encoding.exchanged == 0) continue;
      its.exchanged_inner = !optimizer_sharded(group_spec);
      its.exchanged_outer = !optimizer_sharded_outer(group_spec);
    }
  }
  ++main_version_;
  passes_ = 0;
}

/// One stands for all groups that share it.
void Prover::exchange(const Instruction& instruction) {
  const auto& first = spec(instruction.unit).groups[index(instruction.group)];
  if (instruction.slot != kNone) refuse("exchanges scales in ", slots_.text_of(instruction.slot));
  int64_t scales = 0;
  for (int32_t number = 0; number < std::ssize(units_); ++number) {
    for (size_t group = 0; group < spec(number).groups.size(); ++group) {
      const auto& group_spec = spec(number).groups[group];
      const bool shares = group_spec.encoding.exchanged > 0 &&
                          is_sharded(group_spec, Role::optimizer, instruction.axis) &&
                          exchanges_with(first, group_spec, instruction.axis);
      if (!shares) continue;
      scales += group_spec.encoding.exchanged;
      auto& its = state(number).groups[group];
      (instruction.axis == AxisKind::outer ? its.exchanged_outer : its.exchanged_inner) = true;
    }
  }
  if (instruction.bytes != 4 * scales) {
    refuse("exchanges ", instruction.bytes, " bytes for ", scales, " scales");
  }
}

void Prover::publish() {
  published_ = main_version_;
  for (int32_t number = 0; number < std::ssize(units_); ++number) {
    auto& unit = state(number);
    for (size_t group = 0; group < unit.groups.size(); ++group) {
      const auto& group_spec = spec(number).groups[group];
      if (unit.calls > 0 && group_spec.trainable) write_weight(number, group);
      if (!unit.groups[group].exchanged_inner || !unit.groups[group].exchanged_outer) {
        refuse("encodes '", group_spec.name, "' before all ranks know its scales");
      }
      const bool stale =
          group_spec.trainable && (refreshes_inner(group_spec) || refreshes_outer(group_spec));
      if (!stale) unit.groups[group].version = published_;
    }
  }
}

}  // namespace sherd
