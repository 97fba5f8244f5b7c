// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/program.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "plan/arena.h"
#include "plan/group_shape.h"
#include "plan/lifetimes.h"
#include "plan/proof.h"
#include "plan/section_builder.h"
#include "plan/text.h"
#include "plan/unit_tree.h"

namespace sherd {
namespace {

constexpr const char* kStageReduce = "stage.reduce";
constexpr const char* kStageOuter = "stage.outer";

size_t bits(const ForwardFlags& flags) {
  return static_cast<size_t>(flags.changed) | static_cast<size_t>(flags.train) << 1 |
         static_cast<size_t>(flags.still_gathered) << 2;
}

size_t bits(const BackwardFlags& flags) {
  return static_cast<size_t>(flags.first) | static_cast<size_t>(flags.last) << 1 |
         static_cast<size_t>(flags.still_gathered) << 2;
}

ForwardFlags forward_flags(size_t bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

BackwardFlags backward_flags(size_t bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

/// A slot of its own for every buffer, one after the other.
std::vector<int64_t> apart(const std::vector<int64_t>& bytes) {
  std::vector<int64_t> offsets;
  int64_t next = 0;
  for (const int64_t size : bytes) {
    offsets.push_back(size > 0 ? next : kNone);
    next += size;
  }
  return offsets;
}

/// Where buffers lie in a program with the same units.
std::vector<int64_t> offsets_in(const Program& program, const ArenaBuffers& buffers) {
  std::vector<int64_t> offsets(buffers.bytes().size(), kNone);
  const auto keep = [&](int32_t buffer, int32_t slot) {
    if (slot == kNone) return;
    offsets[static_cast<size_t>(buffer)] = program.slots()[static_cast<size_t>(slot)].offset;
  };
  for (int32_t unit = 0; unit < std::ssize(program.units()); ++unit) {
    keep(buffers.parameters(unit), program.slots_of(unit).parameters);
    keep(buffers.transposed(unit), program.slots_of(unit).transposed);
    keep(buffers.gradients(unit), program.slots_of(unit).gradients);
  }
  for (int32_t slot = 0; slot < std::ssize(program.slots()); ++slot) {
    const auto& name = program.slots()[static_cast<size_t>(slot)].name;
    if (name == kStageReduce) keep(buffers.stage_reduce(), slot);
    if (name == kStageOuter) keep(buffers.stage_outer(), slot);
  }
  return offsets;
}

// Note [When parameters and gradients share bytes]
// A gather into bytes that had gradients waits for their reduction. Apart, it never does, so that
// is what is tried first: parameters below, gradients above. Where that takes noticeably more than
// is in use at once (a large embedding, whose parameters are needed at one end of a step and whose
// gradients at another), they share. Their lifetimes end a whole unit after the reduction has
// begun, so a gather stands still only where computing would soon do so anyway.
ArenaPlan arena_of(const ArenaBuffers& buffers, const std::vector<Lifetime>& lifetimes) {
  constexpr double kNoticeable = 1.05;
  auto together = plan_arena(buffers.bytes(), lifetimes);
  const auto first_gradient = buffers.gradients(0);
  const auto only = [&](bool gradients) {
    auto bytes = buffers.bytes();
    for (int32_t buffer = 0; buffer < std::ssize(bytes); ++buffer) {
      if ((buffer >= first_gradient) != gradients) bytes[static_cast<size_t>(buffer)] = 0;
    }
    return plan_arena(bytes, lifetimes);
  };
  auto below = only(false);
  const auto above = only(true);
  const int64_t bytes = below.bytes + above.bytes;
  const bool noticeable =
      static_cast<double>(bytes) > kNoticeable * static_cast<double>(together.bound);
  if (noticeable && together.bytes < bytes) return together;
  for (size_t i = 0; i < below.offsets.size(); ++i) {
    if (above.offsets[i] != kNone) below.offsets[i] = below.bytes + above.offsets[i];
  }
  below.bytes = bytes;
  below.bound = together.bound;
  return below;
}

std::string buffer_name(const std::vector<UnitSpec>& units, int32_t buffer) {
  const auto count = static_cast<int32_t>(units.size());
  if (buffer >= 3 * count) return buffer == 3 * count ? kStageReduce : kStageOuter;
  constexpr std::array kKinds{
      "the parameters of '", "the transposed copies of '", "the gradients of '"};
  const auto& unit = units[static_cast<size_t>(buffer % count)].name;
  return text(kKinds[static_cast<size_t>(buffer / count)], unit, "'");
}

ProgramBytes bytes_of(const std::vector<UnitSpec>& units) {
  ProgramBytes bytes;
  for (const auto& unit : units) {
    for (const auto& group : unit.groups) {
      constexpr int64_t kScaleBytes = 4;
      bytes.model_weights +=
          model_bytes(group, part_elements(group, Role::parameter), group.encoding.two_ways) +
          group.encoding.exchanged * kScaleBytes;
      if (!group.shares_weight) {
        bytes.main_weights += part_elements(group, Role::optimizer) * group.bytes.main;
      }
      if (group.trainable) {
        bytes.main_gradients += part_elements(group, Role::gradient) * group.bytes.gradient;
      }
    }
  }
  return bytes;
}

}  // namespace

StepTraffic& StepTraffic::operator+=(const StepTraffic& other) {
  const auto add = [](Traffic& sum, const Traffic& more) {
    sum.calls += more.calls;
    sum.bytes += more.bytes;
  };
  for (const auto member :
       {&StepTraffic::all_gather, &StepTraffic::reduce_scatter, &StepTraffic::all_reduce}) {
    add(this->*member, other.*member);
  }
  for (const auto& [axis, traffic] : other.exchanges) add(exchanges[axis], traffic);
  return *this;
}

std::optional<Collective> collective_of(const Instruction& instruction) {
  if (instruction.axis == AxisKind::none) return std::nullopt;
  switch (instruction.action) {
    case Action::gather:
    case Action::refresh: return Collective::all_gather;
    case Action::reduce:
      return instruction.scatter ? Collective::reduce_scatter : Collective::all_reduce;
    case Action::exchange: return Collective::all_reduce;
    default: return std::nullopt;
  }
}

StepTraffic traffic_of(const Section& section) {
  StepTraffic sum;
  for (const auto& instruction : section.instructions) {
    const auto collective = collective_of(instruction);
    if (!collective) continue;
    auto& kind = *collective == Collective::all_gather       ? sum.all_gather
                 : *collective == Collective::reduce_scatter ? sum.reduce_scatter
                                                             : sum.all_reduce;
    ++kind.calls;
    kind.bytes += instruction.bytes;
  }
  return sum;
}

void Program::build_sections(const UnitTree& tree, const UnitTree& evaluation) {
  const bool keeps = std::any_of(
      units_.begin(), units_.end(), [](const UnitSpec& unit) { return unit.keep_gathered; });
  const EventTable events(units_, slots_);
  const auto input = [&](const UnitTree& of) {
    return SectionInput{
        units_,
        of,
        assignments_,
        slots_,
        events,
        options_.prefetch_depth,
        options_.memory,
        slot_named(kStageReduce),
        slot_named(kStageOuter)};
  };
  const auto training = input(tree);
  const auto evaluating = input(evaluation);
  forward_.clear();
  backward_.clear();
  for (size_t number = 0; number < (keeps ? 8 : 4); ++number) {
    const auto flags = forward_flags(number);
    forward_.push_back(build_forward(flags.train ? training : evaluating, flags));
    backward_.push_back(build_backward(training, backward_flags(number)));
  }
  update_ = build_update(training);
  events_ = events.names();
}

int32_t Program::slot_named(const char* name) const {
  const auto found = std::find_if(
      slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.name == name; });
  return found == slots_.end() ? kNone : static_cast<int32_t>(found - slots_.begin());
}

/// A slot per range: units that have the same one take turns in it.
void Program::take_slots(const Needs& needs, const std::vector<int64_t>& offsets) {
  const ArenaBuffers buffers(needs);
  assignments_ = needs.assignments;
  slots_.clear();
  const auto take = [&](const char* kind, int32_t buffer) {
    const int64_t bytes = buffers.bytes()[static_cast<size_t>(buffer)];
    const int64_t offset = offsets[static_cast<size_t>(buffer)];
    if (bytes == 0 || offset == kNone) return kNone;
    int32_t number = 0;  // among those of its kind
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].name.rfind(kind, 0) != 0) continue;
      ++number;
      if (slots_[slot].offset == offset && slots_[slot].bytes == bytes) {
        return static_cast<int32_t>(slot);
      }
    }
    slots_.push_back({text(kind, ".", number), offset, bytes});
    return static_cast<int32_t>(slots_.size()) - 1;
  };
  for (int32_t unit = 0; unit < std::ssize(units_); ++unit) {
    assignments_[static_cast<size_t>(unit)].parameters =
        take("parameters", buffers.parameters(unit));
  }
  for (int32_t unit = 0; unit < std::ssize(units_); ++unit) {
    assignments_[static_cast<size_t>(unit)].transposed =
        take("transposed", buffers.transposed(unit));
  }
  for (int32_t unit = 0; unit < std::ssize(units_); ++unit) {
    assignments_[static_cast<size_t>(unit)].gradients = take("gradients", buffers.gradients(unit));
  }
  const auto stage = [&](const char* name, int32_t buffer) {
    const int64_t bytes = buffers.bytes()[static_cast<size_t>(buffer)];
    if (bytes > 0) slots_.push_back({name, offsets[static_cast<size_t>(buffer)], bytes});
  };
  stage(kStageReduce, buffers.stage_reduce());
  stage(kStageOuter, buffers.stage_outer());
}

Program Program::build(
    std::vector<UnitSpec> units,
    CallOrder order,
    const ProgramOptions& options,
    RebuildHints more) {
  const auto count = static_cast<int32_t>(units.size());
  const UnitTree tree(order, count);
  const UnitTree evaluation(more.evaluation ? *more.evaluation : order, count);
  const auto needs = needs_of(units);
  const ArenaBuffers buffers(needs);

  Program program;
  program.units_ = std::move(units);
  program.order_ = std::move(order);
  program.evaluation_ = std::move(more.evaluation);
  program.options_ = options;
  // First with a slot of its own for every buffer, to learn how long each is needed.
  program.take_slots(needs, apart(buffers.bytes()));
  program.build_sections(tree, evaluation);
  const auto lifetimes = lifetimes_of(program, buffers);
  ArenaPlan arena;
  try {
    arena = more.before ? plan_arena(buffers.bytes(), lifetimes, offsets_in(*more.before, buffers))
                        : arena_of(buffers, lifetimes);
  } catch (const PinnedConflict& conflict) {
    throw std::runtime_error(text(
        "[plan.arena] the addresses can't be kept: ", buffer_name(program.units_, conflict.one),
        " and ", buffer_name(program.units_, conflict.other),
        " share memory, and this order of units needs both at once"));
  }
  if (options.memory == MemoryKind::planned) {
    program.take_slots(needs, arena.offsets);
    program.build_sections(tree, evaluation);
  }
  program.bytes_ = bytes_of(program.units_);
  program.bytes_.bound = arena.bound;
  program.bytes_.arena = options.memory == MemoryKind::planned ? arena.bytes : arena.bound;
  program.hash_facts();
  prove(program);
  return program;
}

void Program::hash_facts() {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : facts()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  fingerprint_ = hash;
}

Program Program::with_exchanges(std::vector<CallExchanges> exchanges) const {
  const auto calls = static_cast<size_t>(std::count_if(
      order_.begin(), order_.end(), [](const CallEvent& event) { return event.enter; }));
  if (!exchanges.empty() && exchanges.size() != calls) {
    throw std::invalid_argument(text(
        "[plan] exchanges of ", exchanges.size(), " calls for a program of ", calls,
        ": give one list for each"));
  }
  for (const auto& call : exchanges) {
    for (const auto& one : call) {
      if (one.ranks >= 1 && one.bytes >= 0) continue;
      throw std::invalid_argument(text(
          "[plan] an exchange of ", one.bytes, " bytes along '", one.axis, "' among ", one.ranks,
          " ranks: give at least 0 bytes and 1 rank"));
    }
  }
  Program result = *this;
  result.exchanges_ = std::move(exchanges);
  result.hash_facts();
  return result;
}

CallExchanges Program::exchanges_in(const Section& section, int32_t position) const {
  // Positions of an evaluation with an order of its own are others, and its exchanges unknown.
  const bool known = section.train || section.kind == Section::Kind::backward || !evaluation_;
  if (position == kNone || !known || static_cast<size_t>(position) >= exchanges_.size()) return {};
  const bool forward = section.kind == Section::Kind::forward;
  CallExchanges result;
  for (const auto& one : exchanges_[static_cast<size_t>(position)]) {
    if ((one.pass == ExchangePass::forward) == forward) result.push_back(one);
  }
  return result;
}

const Section& Program::forward(const ForwardFlags& flags) const {
  return forward_[bits(flags) % forward_.size()];
}

const Section& Program::backward(const BackwardFlags& flags) const {
  return backward_[bits(flags) % backward_.size()];
}

std::vector<const Section*> Program::sections() const {
  std::vector<const Section*> all;
  for (const auto& section : forward_) all.push_back(&section);
  for (const auto& section : backward_) all.push_back(&section);
  all.push_back(&update_);
  return all;
}

std::vector<const Section*> Program::step() const {
  std::vector<const Section*> all;
  const int64_t passes = options_.micro_batches;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const bool first = pass == 0;
    // Units that stay gathered after a forward are released in its backward.
    all.push_back(&forward({.changed = first}));
    all.push_back(&backward({.first = first, .last = pass + 1 == passes, .still_gathered = true}));
  }
  return all;
}

StepTraffic Program::traffic() const {
  StepTraffic sum;
  for (const auto* section : step()) {
    sum += traffic_of(*section);
    for (int32_t position = 0; position < std::ssize(exchanges_); ++position) {
      for (const auto& one : exchanges_in(*section, position)) {
        auto& along = sum.exchanges[one.axis];
        ++along.calls;
        along.bytes += one.bytes;
      }
    }
  }
  sum += traffic_of(update_);
  return sum;
}

}  // namespace sherd
