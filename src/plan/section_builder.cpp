// SPDX-License-Identifier: Apache-2.0
#include "plan/section_builder.h"

#include <algorithm>
#include <set>

#include "plan/group_shape.h"
#include "plan/section_waits.h"
#include "plan/text.h"

namespace sherd {

EventTable::EventTable(const std::vector<UnitSpec>& units, const std::vector<Slot>& slots)
    : units_(static_cast<int32_t>(units.size())) {
  names_.push_back("published");
  for (const auto& unit : units) {
    for (const char* kind : {"refreshed", "gathered", "computed", "settled", "finished"}) {
      names_.push_back(text(kind, "(", unit.name, ")"));
    }
  }
  for (const auto& slot : slots) {
    for (const char* kind : {"released", "reduced", "sent"}) {
      names_.push_back(text(kind, "(", slot.name, ")"));
    }
  }
}

namespace {

/// Appends instructions, boundary by boundary.
class Writer {
 public:
  explicit Writer(const SectionInput& input)
      : in_(input),
        live_(input.units.size()),
        transposed_(input.units.size()),
        refreshed_(input.units.size()),
        waits_(input.slots, input.events) {}

  void begin(Boundary::Kind kind, int32_t position) {
    const int32_t unit = position == kNone ? kNone : in_.tree.call(position).unit;
    const int32_t here = size();
    section.boundaries.push_back({kind, position, unit, here, here});
  }
  void end() { section.boundaries.back().end = size(); }

  bool is_live(int32_t unit) const { return live_[index(unit)]; }
  void set_live(int32_t unit, bool live) { live_[index(unit)] = live; }

  /// Gathers a unit's parameters into its slot, after a refresh of what the update changed, and
  /// transposes what a backward needs so.
  void gather(int32_t unit, bool changed) {
    const bool gathers = !live_[index(unit)];
    live_[index(unit)] = true;
    const bool refreshes = gathers && changed && !refreshed_[index(unit)];
    refreshed_[index(unit)] = true;
    const auto first = section.instructions.size();
    for (const Stream stream : {Stream::outer, Stream::gather}) {
      const auto begin = section.instructions.size();
      bool waited = false;  // for the slot's last reader, once per stream
      each_group(unit, [&](const GroupSpec& group, int32_t number) {
        if (refreshes) refresh(group, unit, number, stream);
        if (gathers) waited |= gather(group, unit, number, stream, !waited);
      });
      if (stream == Stream::gather) transpose(unit);
      if (section.instructions.size() == begin) continue;
      signal(stream == Stream::outer ? in_.events.refreshed(unit) : in_.events.gathered(unit));
    }
    // The inner gather reads what the outer one brought.
    bool over_outer = false;
    for (auto i = first; i < section.instructions.size(); ++i) {
      auto& instruction = section.instructions[i];
      over_outer |= instruction.stream == Stream::outer;
      if (over_outer && instruction.stream == Stream::gather) {
        instruction.waits.push_back(in_.events.refreshed(unit));
        return;
      }
    }
  }

  void wait(int32_t unit) {
    Instruction made{.action = Action::wait, .stream = Stream::compute, .unit = unit};
    made.slot = slots_of(unit).parameters;
    made.also_reads = transposed_slot(unit);
    // Whatever comes over the outer axis goes on over the inner one.
    const int32_t gathered = in_.events.gathered(unit);
    if (signalled(gathered)) made.waits.push_back(gathered);
    section.instructions.push_back(std::move(made));
  }

  void compute(int32_t unit, bool signals) {
    Instruction made{.action = Action::compute, .stream = Stream::compute, .unit = unit};
    made.slot = slots_of(unit).parameters;
    made.also_reads = transposed_slot(unit);
    section.instructions.push_back(std::move(made));
    if (signals) signal(in_.events.computed(unit));
  }

  void release(int32_t unit) {
    live_[index(unit)] = false;
    transposed_[index(unit)] = false;
    for (const int32_t slot : {slots_of(unit).parameters, transposed_slot(unit)}) {
      if (slot == kNone) continue;
      section.instructions.push_back(
          {.action = Action::release, .stream = Stream::compute, .unit = unit, .slot = slot});
      signal(in_.events.released(slot));
    }
  }

  void open(int32_t unit) {
    const int32_t slot = slots_of(unit).gradients;
    if (slot == kNone) return;
    section.instructions.push_back(
        {.action = Action::open,
         .stream = Stream::compute,
         .unit = unit,
         .slot = slot,
         .waits = in_.memory == MemoryKind::eager ? freed_gradients() : waits_.before_open(slot)});
  }

  void reduce(int32_t unit, const BackwardFlags& flags) {
    const auto begin = section.instructions.size();
    each_group(unit, [&](const GroupSpec& group, int32_t number) {
      if (group.trainable) reduce_inner(group, unit, number, flags);
    });
    const int32_t slot = slots_of(unit).gradients;
    if (section.instructions.size() == begin) return;
    section.instructions[begin].waits.push_back(in_.events.computed(unit));
    const int32_t joined = slot == kNone ? in_.events.settled(unit) : in_.events.reduced(slot);
    signal(joined);
    if (slot != kNone) under_reduction_.push_back(slot);
    const auto outer = section.instructions.size();
    each_group(unit, [&](const GroupSpec& group, int32_t number) {
      if (group.trainable && group.has_outer) reduce_outer(group, unit, number, flags);
    });
    if (section.instructions.size() == outer) return;
    section.instructions[outer].waits.push_back(joined);
    signal(slot == kNone ? in_.events.finished(unit) : in_.events.sent(slot));
  }

  void drain() {
    Instruction made{.action = Action::drain, .stream = Stream::compute};
    // The last instruction of a stream stands for all before it.
    for (const Stream stream : {Stream::reduce, Stream::outer}) {
      const auto last = std::find_if(
          section.instructions.rbegin(), section.instructions.rend(),
          [&](const Instruction& instruction) { return instruction.stream == stream; });
      if (last != section.instructions.rend()) made.waits.push_back(last->signals);
    }
    section.instructions.push_back(std::move(made));
  }

  /// The first instruction of each communication stream waits for the update that came before.
  void finish() {
    for (const Stream stream : {Stream::gather, Stream::outer}) {
      const auto first = std::find_if(
          section.instructions.begin(), section.instructions.end(),
          [&](const Instruction& instruction) { return instruction.stream == stream; });
      if (first != section.instructions.end()) first->waits.push_back(in_.events.published());
    }
  }

  Section section;

 private:
  static size_t index(int32_t number) { return static_cast<size_t>(number); }
  int32_t size() const { return static_cast<int32_t>(section.instructions.size()); }
  const SlotAssignment& slots_of(int32_t unit) const { return in_.assignments[index(unit)]; }

  template <class Visitor>
  void each_group(int32_t unit, Visitor visitor) {
    int32_t number = 0;
    for (const auto& group : in_.units[index(unit)].groups) visitor(group, number++);
  }

  /// The end of the last instruction is the event.
  void signal(int32_t event) {
    section.instructions.back().signals = event;
    signalled_.insert(event);
    waits_.note_signal(event);
  }
  bool signalled(int32_t event) const { return signalled_.count(event) > 0; }

  /// Eager: gradients go back to the allocator, which knows the compute stream alone, when that has
  /// waited for their reduction; those of the last unit are left to be reduced meanwhile.
  std::vector<int32_t> freed_gradients() {
    std::vector<int32_t> waits;
    while (under_reduction_.size() > 1) {
      waits.push_back(in_.events.reduced(under_reduction_.front()));
      waits.push_back(in_.events.sent(under_reduction_.front()));
      under_reduction_.erase(under_reduction_.begin());
    }
    return waits;
  }

  /// Backwards alone compute with transposed copies.
  int32_t transposed_slot(int32_t unit) const {
    return section.kind == Section::Kind::backward ? slots_of(unit).transposed : kNone;
  }

  /// The copies are made of the slot, or of weights that are not sharded, until the release.
  void transpose(int32_t unit) {
    const int32_t slot = transposed_slot(unit);
    if (slot == kNone || transposed_[index(unit)]) return;
    transposed_[index(unit)] = true;
    bool waited = false;
    each_group(unit, [&](const GroupSpec& group, int32_t number) {
      if (!group.encoding.transposes) return;
      Instruction made{
          .action = Action::transpose,
          .stream = Stream::gather,
          .unit = unit,
          .group = number,
          .slot = slot,
          .also_reads = gathers_inner(group) ? slots_of(unit).parameters : kNone};
      if (!waited) made.waits = waits_.before_gather(slot, Stream::gather);
      waited = true;
      section.instructions.push_back(std::move(made));
    });
  }

  void refresh(const GroupSpec& group, int32_t unit, int32_t number, Stream stream) {
    const bool outer = stream == Stream::outer;
    if (!group.trainable || !(outer ? refreshes_outer(group) : refreshes_inner(group))) return;
    const int64_t elements = outer ? inner_part(group, Role::optimizer) : group.elements;
    section.instructions.push_back(
        {.action = Action::refresh,
         .stream = stream,
         .axis = outer ? AxisKind::outer : AxisKind::inner,
         .two_ways = group.encoding.two_ways,
         .unit = unit,
         .group = number,
         .bytes = model_bytes(group, elements, group.encoding.two_ways)});
  }

  bool gather(
      const GroupSpec& group, int32_t unit, int32_t number, Stream stream, bool takes_slot) {
    const bool outer = stream == Stream::outer;
    if (!(outer ? gathers_outer(group) : gathers_inner(group))) return false;
    const int32_t slot = slots_of(unit).parameters;
    // What stays gathered is not gathered again for the backward.
    const bool for_backward = section.kind == Section::Kind::backward ||
                              (section.train && in_.units[index(unit)].keep_gathered);
    const bool two_ways = group.encoding.two_ways && for_backward;
    const int64_t elements = outer ? inner_part(group, Role::parameter) : group.elements;
    Instruction made{
        .action = Action::gather,
        .stream = stream,
        .axis = outer ? AxisKind::outer : AxisKind::inner,
        .two_ways = two_ways,
        .unit = unit,
        .group = number,
        .slot = slot,
        .bytes = model_bytes(group, elements, two_ways)};
    if (takes_slot) made.waits = waits_.before_gather(slot, stream);
    section.instructions.push_back(std::move(made));
    return true;
  }

  /// The gradients of this pass over the inner axis, or, where they are not sharded, the main
  /// gradient in the last pass.
  void reduce_inner(
      const GroupSpec& group, int32_t unit, int32_t number, const BackwardFlags& flags) {
    const bool sharded = gradient_sharded(group);
    if (!sharded && !flags.last) return;
    const bool staged = !sharded && !group.reduces_in_place;
    const int32_t slot = sharded ? slots_of(unit).gradients : staged ? in_.stage_reduce : kNone;
    Instruction made{.stream = Stream::reduce, .unit = unit, .group = number, .slot = slot};
    if (staged) add(made, Action::stage);
    made.axis = AxisKind::inner;
    made.scatter = sharded || optimizer_sharded(group);
    made.bytes = group.elements * group.bytes.reduce;
    add(made, Action::reduce);
    if (gradient_sharded_outer(group)) return;  // goes on over the outer axis
    made.overwrite = !sharded || flags.first;
    add(made, Action::accumulate);
  }

  void reduce_outer(
      const GroupSpec& group, int32_t unit, int32_t number, const BackwardFlags& flags) {
    const bool sharded = gradient_sharded_outer(group);
    if (!sharded && !flags.last) return;
    const bool staged = !sharded && !group.reduces_in_place;
    const int32_t slot = sharded ? slots_of(unit).gradients : staged ? in_.stage_outer : kNone;
    Instruction made{.stream = Stream::outer, .unit = unit, .group = number, .slot = slot};
    if (staged) add(made, Action::stage, AxisKind::outer);
    made.axis = AxisKind::outer;
    made.scatter = sharded || optimizer_sharded_outer(group);
    made.bytes = inner_part(group, Role::optimizer) * group.bytes.reduce;
    add(made, Action::reduce);
    if (!sharded && !staged) return;
    made.overwrite = !sharded || flags.first;
    add(made, Action::accumulate, AxisKind::outer);
  }

  void add(const Instruction& like, Action action, AxisKind axis = AxisKind::none) {
    Instruction made = like;
    made.action = action;
    if (action != Action::reduce) {
      made.axis = axis;
      made.scatter = false;
      made.bytes = 0;
    }
    if (action != Action::accumulate) made.overwrite = false;
    section.instructions.push_back(std::move(made));
  }

  const SectionInput& in_;
  std::vector<bool> live_;
  std::vector<bool> transposed_;
  std::vector<bool> refreshed_;
  std::set<int32_t> signalled_;
  SlotWaits waits_;
  std::vector<int32_t> under_reduction_;  // gradient slots, in the order of their reductions
};

/// The units to gather ahead on entering `positions[here]`: those of the list or, if it is empty,
/// the next `depth` that nest nothing.
void prefetch(
    Writer& writer,
    const SectionInput& in,
    const std::vector<int32_t>& list,
    const std::vector<int32_t>& positions,
    size_t here,
    bool changed) {
  for (const int32_t other : list) {
    // In an order where it has already been, nothing would release it.
    const auto later = positions.begin() + static_cast<std::ptrdiff_t>(here) + 1;
    const bool comes = std::any_of(
        later, positions.end(), [&](int32_t next) { return in.tree.call(next).unit == other; });
    if (comes) writer.gather(other, changed);
  }
  if (!list.empty()) return;
  int64_t left = in.depth;
  for (size_t i = here + 1; i < positions.size() && left > 0; ++i) {
    const int32_t unit = in.tree.call(positions[i]).unit;
    if (in.tree.nests(unit)) continue;
    --left;
    writer.gather(unit, changed);
  }
}

std::vector<int32_t> positions_of(const std::vector<UnitTree::Event>& events) {
  std::vector<int32_t> positions;
  for (const auto& event : events) {
    if (event.kind != Boundary::Kind::exit) positions.push_back(event.position);
  }
  return positions;
}

std::string flag(bool value, const char* word) {
  return value ? text(" ", word) : "";
}

}  // namespace

Section build_forward(const SectionInput& in, const ForwardFlags& flags) {
  Writer writer(in);
  writer.section.kind = Section::Kind::forward;
  writer.section.train = flags.train;
  writer.section.still_gathered = flags.still_gathered;
  writer.section.name = text(
      "forward", flag(flags.changed, "changed"), flags.train ? " train" : " evaluate",
      flag(flags.still_gathered, "gathered"));
  for (size_t unit = 0; flags.still_gathered && unit < in.units.size(); ++unit) {
    writer.set_live(static_cast<int32_t>(unit), in.units[unit].keep_gathered);
  }
  const auto positions = positions_of(in.tree.forward());
  std::vector<int32_t> inside(in.units.size(), 0);  // calls of a unit that are under way
  for (const auto& [kind, position] : in.tree.forward()) {
    const int32_t unit = in.tree.call(position).unit;
    const auto& spec = in.units[static_cast<size_t>(unit)];
    auto& depth = inside[static_cast<size_t>(unit)];
    writer.begin(kind, position);
    if (kind == Boundary::Kind::enter) {
      ++depth;
      writer.gather(unit, flags.changed);
      if (in.tree.is_leaf(position)) {
        const auto here = static_cast<size_t>(position);
        prefetch(writer, in, spec.prefetch, positions, here, flags.changed);
      }
      writer.wait(unit);
    } else {
      writer.compute(unit, false);
      const bool keeps = spec.keep_gathered && (flags.train || flags.still_gathered);
      if (--depth == 0 && !keeps) writer.release(unit);
    }
    writer.end();
  }
  writer.finish();
  return std::move(writer.section);
}

Section build_backward(const SectionInput& in, const BackwardFlags& flags) {
  Writer writer(in);
  writer.section.kind = Section::Kind::backward;
  writer.section.still_gathered = flags.still_gathered;
  writer.section.name = text(
      "backward", flag(flags.first, "first"), flag(flags.last, "last"),
      flag(flags.still_gathered, "gathered"));
  writer.section.entered.assign(in.tree.calls().size(), kNone);
  writer.section.recomputed.assign(in.tree.calls().size(), kNone);
  std::vector<int32_t> ahead(in.units.size(), 0);  // calls whose backward is still to come
  for (size_t unit = 0; flags.still_gathered && unit < in.units.size(); ++unit) {
    writer.set_live(static_cast<int32_t>(unit), in.units[unit].keep_gathered);
  }
  for (const auto& call : in.tree.calls()) ++ahead[static_cast<size_t>(call.unit)];
  std::vector<int32_t> inside(in.units.size(), 0);
  std::vector<bool> opened(in.units.size());
  const auto positions = positions_of(in.tree.backward());
  size_t here = 0;
  for (const auto& [kind, position] : in.tree.backward()) {
    const int32_t unit = in.tree.call(position).unit;
    const auto at = static_cast<size_t>(unit);
    const auto boundary = static_cast<int32_t>(writer.section.boundaries.size());
    writer.begin(kind, position);
    if (kind == Boundary::Kind::exit) {
      const bool done = --ahead[at] == 0;
      writer.compute(unit, done);
      if (done) writer.reduce(unit, flags);
      if (--inside[at] == 0) writer.release(unit);
    } else {
      const bool recomputes = kind == Boundary::Kind::recompute;
      auto& known = recomputes ? writer.section.recomputed : writer.section.entered;
      known[static_cast<size_t>(position)] = boundary;
      writer.gather(unit, false);
      if (in.tree.is_leaf(position)) {
        prefetch(writer, in, in.units[at].backward_prefetch, positions, here, false);
      }
      writer.wait(unit);
      if (!recomputes) {
        ++inside[at];
        if (!opened[at]) writer.open(unit);
        opened[at] = true;
      }
      ++here;
    }
    writer.end();
  }
  writer.begin(Boundary::Kind::end, kNone);
  // Eager: what is still being reduced is given back.
  if (flags.last || in.memory == MemoryKind::eager) writer.drain();
  writer.end();
  writer.finish();
  return std::move(writer.section);
}

namespace {

/// One for all groups whose optimizer is sharded over the same axis, named by the first of them.
std::vector<Instruction> build_exchanges(const std::vector<UnitSpec>& units) {
  constexpr int64_t kBytes = 4;  // of a magnitude
  std::vector<Instruction> result;
  const auto spec = [&](const Instruction& one) -> const GroupSpec& {
    return units[static_cast<size_t>(one.unit)].groups[static_cast<size_t>(one.group)];
  };
  for (const AxisKind axis : {AxisKind::inner, AxisKind::outer}) {
    const auto first = result.size();
    for (int32_t unit = 0; unit < std::ssize(units); ++unit) {
      const auto& groups = units[static_cast<size_t>(unit)].groups;
      for (int32_t number = 0; number < std::ssize(groups); ++number) {
        const auto& group = groups[static_cast<size_t>(number)];
        if (group.encoding.exchanged == 0 || !is_sharded(group, Role::optimizer, axis)) continue;
        const auto same = std::find_if(
            result.begin() + static_cast<std::ptrdiff_t>(first), result.end(),
            [&](const Instruction& one) { return exchanges_with(spec(one), group, axis); });
        if (same != result.end()) {
          same->bytes += kBytes * group.encoding.exchanged;
          continue;
        }
        result.push_back(
            {.action = Action::exchange,
             .stream = Stream::compute,
             .axis = axis,
             .unit = unit,
             .group = number,
             .bytes = kBytes * group.encoding.exchanged});
      }
    }
  }
  return result;
}

}  // namespace

Section build_update(const SectionInput& in) {
  Section section;
  section.kind = Section::Kind::update;
  section.name = "update";
  section.instructions.push_back({.action = Action::update, .stream = Stream::compute});
  for (auto& exchange : build_exchanges(in.units)) {
    section.instructions.push_back(std::move(exchange));
  }
  section.instructions.push_back(
      {.action = Action::publish, .stream = Stream::compute, .signals = in.events.published()});
  const auto count = static_cast<int32_t>(section.instructions.size());
  section.boundaries.push_back({Boundary::Kind::end, kNone, kNone, 0, count});
  return section;
}

}  // namespace sherd
