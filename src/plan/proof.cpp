// SPDX-License-Identifier: Apache-2.0
#include "plan/proof.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "plan/group_shape.h"
#include "plan/text.h"

namespace sherd {
namespace {

using Clock = std::array<int32_t, kStreams>;

struct Fault {
  std::string why;
};

template <class... Args>
[[noreturn]] void refuse(const Args&... args) {
  throw Fault{text(args...)};
}

size_t index(int32_t number) {
  return static_cast<size_t>(number);
}

/// An access to a resource: when, and by whom.
struct Access {
  Stream stream{};
  int32_t tick = 0;  // 0: none yet
  Action action{};
  bool precedes(const Clock& clock) const { return clock[static_cast<size_t>(stream)] >= tick; }
};

/// The accesses to one slot, weight or gradient that a later one may collide with.
struct Resource {
  Access write;
  std::array<Access, kStreams> reads{};  // the last of each stream
};

/// What a slot is taken for: a unit's parameters, its gradients, or a copy of a group's.
struct Owner {
  enum class Kind : uint8_t { nobody, parameters, gradients, stage };
  Kind kind{};
  int32_t unit = kNone;
  int32_t group = kNone;  // of a copy
  friend bool operator==(const Owner&, const Owner&) = default;
};

/// What the gradients of a group have been through since the last update.
struct GradientState {
  int contributions = 0;    // passes that reached the main gradient
  bool pending = false;     // this pass's gradients lie in the slot, not yet in the main gradient
  bool reduced = false;     // in the slot: over the inner axis
  bool sent = false;        // in the slot: over the outer axis
  int32_t staged = kNone;   // the slot of its copy in the reduce dtype
  bool inner_done = false;  // of the main gradient
  bool divided = false;
  bool outer_done = false;
};

struct UnitState {
  std::vector<bool> gathered;        // by group: the slot holds the full parameters
  std::vector<bool> gathered_outer;  // by group: first half of a gather over both axes
  int64_t version = 0;               // of what was gathered
  bool live = false;
  bool ready = false;     // waited for
  bool consumed = false;  // computed with, since the gather
  bool opened = false;    // owns its gradient slot
  bool complete = false;  // its gradients of this section are reduced or being so
  int computed = 0;       // how often, in this section
};

class Prover {
 public:
  explicit Prover(const Program& program)
      : program_(program),
        slots_(program.slots().size()),
        slot_owner_(program.slots().size()),
        event_clock_(program.events().size()),
        calls_(program.units().size()) {
    for (const auto& visit : program.order()) calls_[index(visit.unit)] += visit.enter ? 1 : 0;
    for (const auto& unit : program.units()) {
      const auto groups = unit.groups.size();
      units_.push_back({std::vector<bool>(groups), std::vector<bool>(groups)});
      weights_.emplace_back(groups);
      main_gradients_.emplace_back(groups);
      gradients_.emplace_back(groups);
      rest_version_.emplace_back(groups, 0);
      outer_version_.emplace_back(groups, 0);
    }
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

  std::optional<Refusal> run(const Sequence& sequence) {
    for (const auto* section : sequence) {
      section_ = section;
      int32_t number = 0;
      try {
        for (auto& unit : units_) unit.computed = 0;
        if (section->kind == Section::Kind::backward) begin_backward();
        for (const auto& instruction : section->instructions) {
          step(instruction);
          ++number;
        }
        number = kNone;
        end_section();
      } catch (const Fault& fault) {
        return Refusal{section->name, number, fault.why};
      }
    }
    return std::nullopt;
  }

 private:
  const UnitSpec& spec(int32_t unit) const { return program_.units()[index(unit)]; }
  const std::string& slot_name(int32_t slot) const { return program_.slots()[index(slot)].name; }

  void step(const Instruction& instruction) {
    auto clock = stream_clock_[static_cast<size_t>(instruction.stream)];
    for (const int32_t event : instruction.waits) {
      if (event < 0 || index(event) >= event_clock_.size()) refuse("waits for an unknown event");
      const auto& other = event_clock_[index(event)];
      for (size_t s = 0; s < kStreams; ++s) clock[s] = std::max(clock[s], other[s]);
    }
    now_ = clock;  // what is done before it starts
    const auto s = static_cast<size_t>(instruction.stream);
    current_ = {instruction.stream, ++ticks_[s], instruction.action};
    check(instruction);
    clock[s] = ticks_[s];
    stream_clock_[s] = clock;
    if (instruction.signals != kNone) event_clock_[index(instruction.signals)] = clock;
  }

  // ---- accesses ----------------------------------------------------------------------------

  void require_before(const Access& earlier, const std::string& what) {
    if (earlier.tick == 0 || earlier.precedes(now_)) return;
    // An instruction may touch a slot once for each of its groups.
    if (earlier.stream == current_.stream && earlier.tick == current_.tick) return;
    refuse(
        what, " is still used by '", to_text(earlier.action), "' on stream ",
        to_text(earlier.stream), ": nothing makes '", to_text(current_.action), "' wait for it");
  }

  void read(Resource& resource, const std::string& what) {
    require_before(resource.write, what);
    resource.reads[static_cast<size_t>(current_.stream)] = current_;
  }

  void write(Resource& resource, const std::string& what) {
    require_before(resource.write, what);
    for (const auto& earlier : resource.reads) require_before(earlier, what);
    resource.write = current_;
  }

  void read_slot(int32_t slot) {
    for (const int32_t other : overlapping_[index(slot)]) {
      if (other != slot) require_before(slots_[index(other)].write, slot_text(other));
    }
    read(slots_[index(slot)], slot_text(slot));
  }

  void write_slot(int32_t slot) {
    for (const int32_t other : overlapping_[index(slot)]) {
      if (other == slot) continue;
      require_before(slots_[index(other)].write, slot_text(other));
      for (const auto& earlier : slots_[index(other)].reads) {
        require_before(earlier, slot_text(other));
      }
    }
    write(slots_[index(slot)], slot_text(slot));
  }

  std::string slot_text(int32_t slot) const { return text("slot '", slot_name(slot), "'"); }
  std::string of(const char* what, int32_t unit, size_t group) const {
    return text(what, " of '", spec(unit).groups[group].name, "'");
  }
  void read_weights(int32_t unit, size_t group) {
    read(weights_[index(unit)][group], of("the weight", unit, group));
  }
  void write_weights(int32_t unit, size_t group) {
    write(weights_[index(unit)][group], of("the weight", unit, group));
  }
  void write_gradient(int32_t unit, size_t group) {
    write(main_gradients_[index(unit)][group], of("the main gradient", unit, group));
  }

  void own(int32_t slot, const Owner& owner) {
    for (const int32_t other : overlapping_[index(slot)]) {
      const auto& holder = slot_owner_[index(other)];
      if (holder.kind == Owner::Kind::nobody) continue;
      refuse(
          "two live owners: '", spec(owner.unit).name, "' takes ", slot_text(slot), " while '",
          spec(holder.unit).name, "' still holds ", slot_text(other));
    }
    slot_owner_[index(slot)] = owner;
  }
  bool owns(int32_t slot, const Owner& owner) const {
    return slot != kNone && slot_owner_[index(slot)] == owner;
  }
  void disown(int32_t slot) { slot_owner_[index(slot)] = {}; }
  static Owner parameters_of(int32_t unit) { return {Owner::Kind::parameters, unit}; }
  static Owner gradients_of(int32_t unit) { return {Owner::Kind::gradients, unit}; }

  /// Each thing has one place, whoever uses it.
  void require_slot(const Instruction& instruction, int32_t expected) const {
    if (instruction.slot == expected) return;
    const auto name = [&](int32_t slot) { return slot == kNone ? "no slot" : slot_text(slot); };
    refuse(
        "uses ", name(instruction.slot), " for '", spec(instruction.unit).name, "' instead of ",
        name(expected));
  }

  // ---- instructions ------------------------------------------------------------------------

  void check(const Instruction& instruction) {
    switch (instruction.action) {
      case Action::refresh: return refresh(instruction);
      case Action::gather: return gather(instruction);
      case Action::wait: return wait(instruction);
      case Action::compute: return compute(instruction);
      case Action::release: return release(instruction);
      case Action::open: return open(instruction);
      case Action::stage: return stage(instruction);
      case Action::reduce: return reduce(instruction);
      case Action::accumulate: return accumulate(instruction);
      case Action::drain: return;
      case Action::update: return update();
      case Action::publish: return publish();
    }
  }

  void refresh(const Instruction& instruction) {
    const auto group = index(instruction.group);
    write_weights(instruction.unit, group);
    auto& rest = rest_version_[index(instruction.unit)][group];
    auto& outer = outer_version_[index(instruction.unit)][group];
    const auto& spec_of_group = spec(instruction.unit).groups[group];
    if (instruction.axis == AxisKind::outer) {
      outer = published_;
      if (!refreshes_inner(spec_of_group)) rest = published_;
    } else {
      if (refreshes_outer(spec_of_group) && outer != published_) {
        refuse("refreshes '", spec_of_group.name, "' over the inner axis before the outer one");
      }
      rest = published_;
    }
  }

  void gather(const Instruction& instruction) {
    auto& unit = units_[index(instruction.unit)];
    const auto group = index(instruction.group);
    const auto& group_spec = spec(instruction.unit).groups[group];
    require_slot(instruction, program_.place(instruction.unit).parameters);
    if (!unit.live) {
      own(instruction.slot, parameters_of(instruction.unit));
      unit.live = true;
      unit.ready = unit.consumed = false;
      unit.version = published_;
    }
    if (unit.ready || unit.gathered[group]) refuse("gathers '", group_spec.name, "' twice");
    read_weights(instruction.unit, group);
    write_slot(instruction.slot);
    if (rest_version_[index(instruction.unit)][group] != published_ ||
        published_ != main_version_) {
      refuse("gathers '", group_spec.name, "' from weights older than the main weights");
    }
    if (instruction.axis == AxisKind::outer) {
      unit.gathered_outer[group] = true;
      return;
    }
    if (gathers_outer(group_spec) && !unit.gathered_outer[group]) {
      refuse("gathers '", group_spec.name, "' over the inner axis before the outer one");
    }
    unit.gathered[group] = true;
  }

  void wait(const Instruction& instruction) {
    const auto& unit_spec = spec(instruction.unit);
    auto& unit = units_[index(instruction.unit)];
    require_slot(instruction, program_.place(instruction.unit).parameters);
    for (size_t group = 0; group < unit_spec.groups.size(); ++group) {
      if (gathers_inner(unit_spec.groups[group])) {
        if (!unit.gathered[group]) {
          refuse("'", unit_spec.groups[group].name, "' is not gathered when its unit needs it");
        }
      } else {
        read_weights(instruction.unit, group);
      }
    }
    if (instruction.slot != kNone) read_slot(instruction.slot);
    unit.ready = true;
  }

  void compute(const Instruction& instruction) {
    const auto& unit_spec = spec(instruction.unit);
    auto& unit = units_[index(instruction.unit)];
    if (!unit.ready) refuse("'", unit_spec.name, "' computes before its parameters are there");
    for (size_t group = 0; group < unit_spec.groups.size(); ++group) {
      if (gathers_inner(unit_spec.groups[group])) {
        if (unit.version != main_version_)
          refuse("'", unit_spec.name, "' computes with old weights");
        continue;
      }
      read_weights(instruction.unit, group);
      if (rest_version_[index(instruction.unit)][group] != main_version_) {
        refuse("'", unit_spec.groups[group].name, "' is older than its main weight");
      }
    }
    require_slot(instruction, program_.place(instruction.unit).parameters);
    if (instruction.slot != kNone) {
      if (!owns(instruction.slot, parameters_of(instruction.unit))) {
        refuse(
            "'", unit_spec.name, "' computes with ", slot_text(instruction.slot),
            ", which it does not hold");
      }
      read_slot(instruction.slot);
    }
    unit.consumed = true;
    ++unit.computed;
    if (section_->kind == Section::Kind::backward) write_gradients(instruction.unit);
  }

  void write_gradients(int32_t number) {
    const auto& unit_spec = spec(number);
    auto& unit = units_[index(number)];
    if (unit.complete) refuse("gradients of '", unit_spec.name, "' come after their reduction");
    for (size_t group = 0; group < unit_spec.groups.size(); ++group) {
      const auto& group_spec = unit_spec.groups[group];
      if (!group_spec.trainable) continue;
      auto& state = gradients_[index(number)][group];
      if (!gradient_sharded(group_spec)) {
        write_gradient(number, group);
        if (state.inner_done || state.staged != kNone)
          refuse("gradients of '", group_spec.name, "' come after their reduction");
        if (!state.pending) ++state.contributions;
        state.pending = true;
        continue;
      }
      if (!unit.opened) refuse("'", unit_spec.name, "' has no slot for its gradients");
      write_slot(program_.place(number).gradients);
      state.pending = true;
    }
  }

  void release(const Instruction& instruction) {
    auto& unit = units_[index(instruction.unit)];
    const auto& name = spec(instruction.unit).name;
    require_slot(instruction, program_.place(instruction.unit).parameters);
    if (!unit.live || !owns(instruction.slot, parameters_of(instruction.unit))) {
      refuse("releases '", name, "', which does not hold its slot");
    }
    if (!unit.consumed) refuse("the gather of '", name, "' is released before anything used it");
    write_slot(instruction.slot);  // after all readers; the next owner waits for this alone
    disown(instruction.slot);
    forget(unit);
  }

  static void forget(UnitState& unit) {
    unit.live = unit.ready = unit.consumed = false;
    std::fill(unit.gathered.begin(), unit.gathered.end(), false);
    std::fill(unit.gathered_outer.begin(), unit.gathered_outer.end(), false);
  }

  void open(const Instruction& instruction) {
    auto& unit = units_[index(instruction.unit)];
    require_slot(instruction, program_.place(instruction.unit).gradients);
    own(instruction.slot, gradients_of(instruction.unit));
    write_slot(instruction.slot);
    unit.opened = true;
  }

  /// The main gradient is next to be reduced over this axis.
  static bool in_turn(const GradientState& state, bool inner) {
    if (state.contributions == 0) return false;
    return inner ? !state.inner_done : state.divided && !state.outer_done;
  }

  void stage(const Instruction& instruction) {
    const auto group = index(instruction.group);
    const auto& group_spec = spec(instruction.unit).groups[group];
    auto& state = gradients_[index(instruction.unit)][group];
    const bool inner = instruction.axis != AxisKind::outer;
    if (!in_turn(state, inner) || state.staged != kNone) {
      refuse("copies the main gradient of '", group_spec.name, "' out of turn");
    }
    const int64_t elements = inner ? group_spec.elements : inner_part(group_spec, Role::optimizer);
    if (instruction.slot == kNone ||
        program_.slots()[index(instruction.slot)].bytes < elements * group_spec.bytes.reduce) {
      refuse("has no room to copy the main gradient of '", group_spec.name, "'");
    }
    read(
        main_gradients_[index(instruction.unit)][group],
        of("the main gradient", instruction.unit, group));
    own(instruction.slot, {Owner::Kind::stage, instruction.unit, instruction.group});
    write_slot(instruction.slot);
    state.staged = instruction.slot;
  }

  /// Gradients of the slot where they are sharded over the axis, else the main gradient, directly
  /// or staged.
  void reduce(const Instruction& instruction) {
    const auto group = index(instruction.group);
    const auto& group_spec = spec(instruction.unit).groups[group];
    auto& unit = units_[index(instruction.unit)];
    auto& state = gradients_[index(instruction.unit)][group];
    const bool inner = instruction.axis == AxisKind::inner;
    const bool in_slot = inner ? gradient_sharded(group_spec) : gradient_sharded_outer(group_spec);
    if (unit.computed != calls_[index(instruction.unit)]) {
      refuse("reduces '", group_spec.name, "' before its gradients are complete");
    }
    unit.complete = true;
    if (in_slot) {
      require_slot(instruction, program_.place(instruction.unit).gradients);
      if (!owns(instruction.slot, gradients_of(instruction.unit)) || !state.pending) {
        refuse("reduces '", group_spec.name, "' before its gradients are there");
      }
      if (inner ? state.reduced : !state.reduced || state.sent) {
        refuse("reduces '", group_spec.name, "' over the axes in the wrong order");
      }
      write_slot(instruction.slot);
      (inner ? state.reduced : state.sent) = true;
      return;
    }
    if (!in_turn(state, inner)) {
      refuse("reduces the main gradient of '", group_spec.name, "' out of turn");
    }
    require_slot(instruction, state.staged);
    if (group_spec.reduces_in_place) {
      write_gradient(instruction.unit, group);
    } else {
      if (state.staged == kNone)
        refuse("reduces '", group_spec.name, "' without a copy in the reduce dtype");
      write_slot(instruction.slot);
    }
    (inner ? state.inner_done : state.outer_done) = true;
    state.pending = false;
  }

  void accumulate(const Instruction& instruction) {
    const auto& group_spec = spec(instruction.unit).groups[index(instruction.group)];
    write_gradient(instruction.unit, index(instruction.group));
    const bool from_slot = instruction.axis == AxisKind::outer ? gradient_sharded_outer(group_spec)
                                                               : gradient_sharded(group_spec);
    if (from_slot) return accumulate_slot(instruction, group_spec);
    auto& state = gradients_[index(instruction.unit)][index(instruction.group)];
    const bool outer = instruction.axis == AxisKind::outer;
    require_slot(instruction, state.staged);
    if (!(outer ? state.outer_done && state.staged != kNone : state.inner_done)) {
      refuse("divides '", group_spec.name, "' before it is reduced");
    }
    if (!outer && state.divided) refuse("divides '", group_spec.name, "' twice");
    if (!instruction.overwrite) {
      refuse("adds '", group_spec.name, "' to the gradients that it was reduced from");
    }
    if (state.staged != kNone) {
      read_slot(state.staged);
      disown(state.staged);
      state.staged = kNone;
    }
    state.divided = true;
  }

  /// This pass's gradients, reduced, leave their slot.
  void accumulate_slot(const Instruction& instruction, const GroupSpec& group_spec) {
    auto& state = gradients_[index(instruction.unit)][index(instruction.group)];
    require_slot(instruction, program_.place(instruction.unit).gradients);
    if (!state.reduced || (gradient_sharded_outer(group_spec) && !state.sent)) {
      refuse("adds '", group_spec.name, "' to the main gradient before it is reduced");
    }
    if (instruction.overwrite != (state.contributions == 0)) {
      refuse(
          instruction.overwrite ? "overwrites earlier gradients of '" : "adds '", group_spec.name,
          instruction.overwrite ? "'" : "' to gradients of the last step");
    }
    if (state.staged != kNone || state.outer_done) {
      refuse("adds '", group_spec.name, "' to a main gradient that is reduced already");
    }
    read_slot(instruction.slot);
    ++state.contributions;
    state.pending = state.reduced = state.sent = false;
    state.divided = true;
    close_slot(instruction.unit);
  }

  /// The slot is free when the last of the unit's groups has left it.
  void close_slot(int32_t number) {
    const auto& groups = spec(number).groups;
    for (size_t group = 0; group < groups.size(); ++group) {
      if (groups[group].trainable && gradient_sharded(groups[group]) &&
          gradients_[index(number)][group].pending) {
        return;
      }
    }
    disown(program_.place(number).gradients);
    units_[index(number)].opened = false;
  }

  void begin_backward() {
    ++passes_;
    for (auto& unit : units_) unit.complete = false;
    for (auto& unit : gradients_) {
      for (auto& state : unit) state.pending = false;
    }
  }

  void update() {
    for (size_t s = 0; s < kStreams; ++s) {
      if (now_[s] < ticks_[s] && s != static_cast<size_t>(Stream::compute)) {
        refuse("stream ", to_text(static_cast<Stream>(s)), " has not rejoined at the update");
      }
    }
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      if (calls_[unit] == 0) continue;
      const auto number = static_cast<int32_t>(unit);
      for (size_t group = 0; group < gradients_[unit].size(); ++group) {
        const auto& group_spec = spec(number).groups[group];
        if (!group_spec.trainable) continue;
        read(main_gradients_[unit][group], of("the main gradient", number, group));
        check_complete(group_spec, gradients_[unit][group]);
        write_weights(number, group);
        gradients_[unit][group] = {};
      }
    }
    ++main_version_;
    passes_ = 0;
  }

  void check_complete(const GroupSpec& group, const GradientState& state) const {
    if (state.contributions != passes_) {
      refuse(
          "the main gradient of '", group.name, "' holds ", state.contributions, " of ", passes_,
          " passes at the update");
    }
    const bool inner = gradient_sharded(group) || state.inner_done;
    const bool outer = !group.has_outer || gradient_sharded_outer(group) || state.outer_done;
    if (!inner || !state.divided || !outer || state.staged != kNone) {
      refuse("the reduction of '", group.name, "' is not drained before the update");
    }
  }

  void publish() {
    published_ = main_version_;
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      const auto& groups = spec(static_cast<int32_t>(unit)).groups;
      for (size_t group = 0; group < groups.size(); ++group) {
        if (calls_[unit] > 0 && groups[group].trainable) {
          write_weights(static_cast<int32_t>(unit), group);
        }
        const bool stale = groups[group].trainable &&
                           (refreshes_inner(groups[group]) || refreshes_outer(groups[group]));
        if (!stale) rest_version_[unit][group] = published_;
      }
    }
  }

  void end_section() {
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      const auto& unit_spec = program_.units()[unit];
      if (section_->kind != Section::Kind::update && units_[unit].computed != calls_[unit]) {
        refuse(
            "'", unit_spec.name, "' computes ", units_[unit].computed, " times instead of ",
            calls_[unit]);
      }
      const bool may_stay = unit_spec.keep_gathered && section_->kind == Section::Kind::forward;
      if (units_[unit].live && !may_stay) {
        refuse("'", unit_spec.name, "' is gathered and never released");
      }
      if (section_->kind != Section::Kind::forward && units_[unit].opened) {
        refuse("the gradients of '", unit_spec.name, "' never leave their slot");
      }
    }
  }

  const Program& program_;
  const Section* section_ = nullptr;
  std::vector<std::vector<int32_t>> overlapping_;  // by slot: those that share a byte with it
  std::vector<Resource> slots_;
  std::vector<Owner> slot_owner_;
  std::vector<std::vector<Resource>> weights_;
  std::vector<std::vector<Resource>> main_gradients_;
  std::vector<std::vector<GradientState>> gradients_;
  std::vector<std::vector<int64_t>> rest_version_;
  std::vector<std::vector<int64_t>> outer_version_;
  std::vector<UnitState> units_;
  std::vector<Clock> event_clock_;
  std::vector<int> calls_;  // of each unit, in a pass
  std::array<Clock, kStreams> stream_clock_{};
  Clock ticks_{};
  Clock now_{};
  Access current_;
  int64_t main_version_ = 0;
  int64_t published_ = 0;
  int passes_ = 0;
};

}  // namespace

std::string Refusal::to_text() const {
  const std::string where = instruction == kNone ? "at the end" : text("instruction ", instruction);
  return text("[plan.proof] ", section, ", ", where, ": ", why);
}

std::vector<Sequence> typical_sequences(const Program& program) {
  const auto forward = [&](bool changed, bool train, bool kept) {
    return &program.forward({changed, train, kept});
  };
  const auto backward = [&](bool first, bool last, bool kept) {
    return &program.backward({first, last, kept});
  };
  const Section* update = &program.update();
  return {
      // One pass a step, twice.
      {forward(false, true, false), backward(true, true, true), update, forward(true, true, false),
       backward(true, true, true), update, forward(true, true, false)},
      // Three passes a step, validation before the first and after the last.
      {forward(false, false, false), forward(false, true, false), backward(true, false, true),
       forward(false, true, false), backward(false, false, true), forward(false, true, false),
       backward(false, true, true), forward(false, false, false), update,
       forward(true, false, false), forward(false, true, false), backward(true, false, true),
       forward(false, true, false), backward(false, true, true), update},
      // Three forwards before three backwards, and validation between them.
      {forward(false, true, false), forward(false, true, true), forward(false, false, true),
       forward(false, true, true), backward(true, false, true), backward(false, false, false),
       backward(false, true, false), update, forward(true, true, false), backward(true, true, true),
       update},
  };
}

std::optional<Refusal> find_fault(const Program& program, const Sequence& sequence) {
  return Prover(program).run(sequence);
}

std::optional<Refusal> find_fault(const Program& program) {
  const int64_t budget = program.options().budget;
  const auto bytes = program.bytes();
  if (budget > 0 && bytes.peak() > budget) {
    return Refusal{
        "memory", kNone,
        text(
            "the peak of ", bytes.peak(), " bytes (", bytes.rest(), " at rest, ", bytes.arena,
            " in slots) is above the budget of ", budget,
            ": lower the prefetch depth, shard more, or raise it")};
  }
  for (const auto& slot : program.slots()) {
    if (slot.offset < 0 || slot.offset + slot.bytes > bytes.arena) {
      return Refusal{"memory", kNone, text("slot '", slot.name, "' reaches beyond the arena")};
    }
  }
  for (const auto& sequence : typical_sequences(program)) {
    if (auto fault = find_fault(program, sequence)) return fault;
  }
  return std::nullopt;
}

void prove(const Program& program) {
  if (const auto fault = find_fault(program)) throw std::runtime_error(fault->to_text());
}

}  // namespace sherd
