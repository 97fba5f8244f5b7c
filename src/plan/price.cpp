// SPDX-License-Identifier: Apache-2.0
#include "plan/price.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "plan/group_shape.h"
#include "plan/text.h"

namespace sherd {
namespace {

size_t index(int32_t number) {
  return static_cast<size_t>(number);
}

/// The parts of the name are put together only if the value is wrong: searches price often.
template <class... Parts>
void check(double value, const Parts&... what) {
  if (std::isfinite(value) && value >= 0) return;
  throw std::invalid_argument(
      text("[plan.price] ", what..., " is ", value, ": give a finite number, at least 0"));
}

template <class... Parts>
void check_link(const Link& link, const Parts&... name) {
  check(link.latency, "the latency of ", name...);
  check(link.bandwidth, "the bandwidth of ", name...);
}

void check(const Program& program, const Costs& costs) {
  const auto& units = program.units();
  if (costs.units.size() != units.size()) {
    throw std::invalid_argument(text(
        "[plan.price] times of ", costs.units.size(), " units for a program of ", units.size(),
        ": give one of each"));
  }
  for (size_t i = 0; i < units.size(); ++i) {
    check(costs.units[i].forward, "the forward of '", units[i].name, "'");
    check(costs.units[i].backward, "the backward of '", units[i].name, "'");
  }
  check(costs.update, "the update");
  check(costs.memory_bandwidth, "the memory bandwidth");
  check_link(costs.network.fallback, "axes that are not named");
  for (const auto& [name, link] : costs.network.axes) check_link(link, "axis '", name, "'");
}

// Note [Why one walk in the order of issue is enough]
// An instruction starts after its predecessor on its stream and after events as they were signalled
// last, all of which were issued before it. So when it is reached, all that its start depends on is
// known. Where transfers need the processor, all streams are one queue: the times add up.

/// Steps of a program, one after the other.
class Walk {
 public:
  Walk(const Program& program, const Costs& costs)
      : program_(program), costs_(costs), signals_(program.events().size()) {}

  Timeline step() {
    restart_clock();
    timeline_ = {};
    timeline_.exposed.assign(program_.units().size(), 0);
    owners_.assign(program_.slots().size(), kNone);
    for (const auto* section : program_.step()) run(*section);
    run(program_.update());
    timeline_.seconds = queue(Stream::compute);
    return std::move(timeline_);
  }

 private:
  /// An event as it was signalled last.
  struct Signal {
    double at = 0;
    int32_t unit = kNone;  ///< whose instruction it was
  };

  struct Cost {
    double seconds = 0;
    int64_t bytes = 0;
  };

  double& queue(Stream stream) {
    return queues_[costs_.network.overlaps ? static_cast<size_t>(stream) : 0];
  }

  /// Times count from where computing is now.
  void restart_clock() {
    const double now = queue(Stream::compute);
    for (auto& end : queues_) end -= now;
    for (auto& signal : signals_) signal.at -= now;
  }

  void run(const Section& section) {
    timeline_.sections.push_back(section.name);
    for (const auto& boundary : section.boundaries) {
      for (int32_t i = boundary.begin; i < boundary.end; ++i) {
        const auto& instruction = section.instructions[index(i)];
        // Before the unit's own work, because the end of that signals that all is done.
        if (instruction.action == Action::compute) exchange(section, boundary);
        run(instruction, section.kind);
      }
    }
  }

  /// The exchanges of a call: computing stands still meanwhile.
  void exchange(const Section& section, const Boundary& boundary) {
    double& free = queue(Stream::compute);
    for (const auto& one : program_.exchanges_in(section, boundary.position)) {
      Span span{
          .stream = Stream::compute,
          .action = Action::compute,
          .unit = boundary.unit,
          .section = static_cast<int32_t>(timeline_.sections.size()) - 1,
          .begin = free,
          .end = free + seconds(costs_.network, one),
          .bytes = one.bytes,
          .exchange = one.kind};
      timeline_.exposed[index(boundary.unit)] += span.end - span.begin;
      free = span.end;
      timeline_.spans.push_back(span);
    }
  }

  void run(const Instruction& instruction, Section::Kind kind) {
    double& free = queue(instruction.stream);
    Signal start{free, kNone};
    for (const int32_t event : instruction.waits) {
      const auto& signal = signals_[index(event)];
      if (signal.at > start.at) start = signal;
    }
    const auto cost = cost_of(instruction, kind);
    const bool computes = instruction.stream == Stream::compute;
    if (instruction.action == Action::exchange) {
      timeline_.exposed[index(instruction.unit)] += cost.seconds;
    } else if (computes) {
      timeline_.compute += cost.seconds;
      // Another stream made it wait, and what runs there belongs to a unit.
      if (start.unit != kNone) timeline_.exposed[index(start.unit)] += start.at - free;
    } else if (!costs_.network.overlaps) {
      timeline_.exposed[index(instruction.unit)] += cost.seconds;
    }
    // What takes no time of its own shows how long computing stood still.
    const bool stands = computes && cost.seconds == 0;
    Span span{
        .stream = instruction.stream,
        .action = instruction.action,
        .axis = instruction.axis,
        .unit = instruction.unit,
        .group = instruction.group,
        .section = static_cast<int32_t>(timeline_.sections.size()) - 1,
        .begin = stands ? free : start.at,
        .end = start.at + cost.seconds,
        .bytes = cost.bytes};
    free = span.end;
    if (instruction.signals != kNone) {
      signals_[index(instruction.signals)] = {span.end, instruction.unit};
    }
    for (const int32_t slot : {instruction.slot, instruction.also_reads}) {
      if (slot != kNone) use_slot(slot, instruction, span);
    }
    timeline_.spans.push_back(span);
  }

  /// A slot has one owner at a time, also in the order of issue.
  void use_slot(int32_t slot, const Instruction& instruction, const Span& span) {
    auto& owner = owners_[index(slot)];
    const auto action = instruction.action;
    const bool opens = action == Action::open;
    if (opens || owner == kNone || timeline_.slot_spans[index(owner)].unit != instruction.unit) {
      const bool gradients = opens || action == Action::stage || action == Action::reduce ||
                             action == Action::accumulate;
      const bool transposed = slot == program_.slots_of(instruction.unit).transposed;
      owner = static_cast<int32_t>(timeline_.slot_spans.size());
      // While it waits to open, the slot is still another's.
      const double begin = opens ? span.end : span.begin;
      const auto content = gradients    ? SlotContent::gradients
                           : transposed ? SlotContent::transposed
                                        : SlotContent::parameters;
      timeline_.slot_spans.push_back({slot, instruction.unit, content, begin, begin});
    }
    auto& use = timeline_.slot_spans[index(owner)];
    use.end = std::max(use.end, span.end);
    if (action == Action::release) owner = kNone;
  }

  Cost cost_of(const Instruction& instruction, Section::Kind kind) const {
    switch (instruction.action) {
      case Action::compute: {
        const auto& times = costs_.units[index(instruction.unit)];
        return {kind == Section::Kind::forward ? times.forward : times.backward};
      }
      case Action::update: return {costs_.update};
      case Action::refresh:
      case Action::gather: return collective(instruction, Collective::all_gather);
      case Action::reduce:
        return collective(
            instruction, instruction.scatter ? Collective::reduce_scatter : Collective::all_reduce);
      case Action::exchange: return collective(instruction, Collective::all_reduce);
      case Action::transpose:
      case Action::stage:
      case Action::accumulate: return kernel(instruction);
      default: return {};
    }
  }

  const GroupSpec& group_of(const Instruction& instruction) const {
    return program_.units()[index(instruction.unit)].groups[index(instruction.group)];
  }

  double move(int64_t bytes) const {
    const double speed = costs_.memory_bandwidth;
    return speed > 0 ? static_cast<double>(bytes) / speed : 0;
  }

  Cost collective(const Instruction& instruction, Collective which) const {
    const auto& group = group_of(instruction);
    const bool outer = instruction.axis == AxisKind::outer;
    const int64_t ranks = outer ? group.axis_sizes.outer : group.axis_sizes.inner;
    if (ranks > 1) {
      const auto& link = costs_.network.link(outer ? group.axes.outer : group.axes.inner);
      return {seconds(link, which, instruction.bytes, ranks), instruction.bytes};
    }
    // All else over one rank is in place.
    const bool copies = instruction.action == Action::gather && (outer || !gathers_outer(group));
    return {copies ? move(2 * instruction.bytes) : 0, instruction.bytes};
  }

  Cost kernel(const Instruction& instruction) const {
    const auto& group = group_of(instruction);
    const bool outer = instruction.axis == AxisKind::outer;
    const auto& size = group.bytes;
    int64_t bytes = 0;
    if (instruction.action == Action::transpose) {
      bytes = 2 * model_bytes(group, group.elements, false);
    } else if (instruction.action == Action::stage) {
      const int64_t elements = outer ? inner_part(group, Role::optimizer) : group.elements;
      bytes = elements * (size.gradient + size.reduce);
    } else {
      const int64_t elements =
          outer ? part_elements(group, Role::optimizer) : inner_part(group, Role::optimizer);
      // Adding reads the main gradient as well.
      bytes = elements * (size.reduce + (instruction.overwrite ? 1 : 2) * size.gradient);
    }
    return {move(bytes), bytes};
  }

  const Program& program_;
  const Costs& costs_;
  std::array<double, kStreams> queues_{};  // when each is done with what it has
  std::vector<Signal> signals_;            // by event
  std::vector<int32_t> owners_;            // by slot: the span that is open
  Timeline timeline_;
};

}  // namespace

double Timeline::exposed_total() const {
  return std::accumulate(exposed.begin(), exposed.end(), 0.0);
}

Timeline price(const Program& program, const Costs& costs) {
  check(program, costs);
  Walk walk(program, costs);
  walk.step();  // what the first leaves behind is what every later one starts from
  return walk.step();
}

}  // namespace sherd
