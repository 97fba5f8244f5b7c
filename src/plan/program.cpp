// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/program.h"

#include <algorithm>
#include <stdexcept>

#include "plan/group_shape.h"
#include "plan/proof.h"
#include "plan/section_builder.h"
#include "plan/slot_colouring.h"
#include "plan/text.h"
#include "plan/unit_tree.h"

namespace sherd {
namespace {

constexpr int64_t kSlotAlignment = 256;

int64_t aligned(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

size_t bits(const ForwardFlags& flags) {
  return static_cast<size_t>(flags.changed) | static_cast<size_t>(flags.train) << 1 |
         static_cast<size_t>(flags.kept) << 2;
}

size_t bits(const BackwardFlags& flags) {
  return static_cast<size_t>(flags.first) | static_cast<size_t>(flags.last) << 1 |
         static_cast<size_t>(flags.kept) << 2;
}

ForwardFlags forward_flags(size_t bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

BackwardFlags backward_flags(size_t bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
}

/// Where the groups of a unit lie in its slots, and how much they need.
struct Needs {
  std::vector<Place> places;
  std::vector<int64_t> parameters;  // bytes, by unit
  std::vector<int64_t> gradients;
  int64_t stage_reduce = 0;
  int64_t stage_outer = 0;
};

Needs needs_of(const std::vector<UnitSpec>& units) {
  Needs needs;
  for (const auto& unit : units) {
    Place place;
    int64_t parameters = 0;
    int64_t gradients = 0;
    for (const auto& group : unit.groups) {
      place.parameter_offsets.push_back(parameters);
      place.gradient_offsets.push_back(gradients);
      if (gathers_inner(group)) parameters += aligned(group.elements * group.bytes.model);
      if (!group.trainable) continue;
      if (gradient_sharded(group)) gradients += aligned(group.elements * group.bytes.reduce);
      if (group.reduces_in_place) continue;
      if (!gradient_sharded(group)) {
        needs.stage_reduce =
            std::max(needs.stage_reduce, aligned(group.elements * group.bytes.reduce));
      }
      if (group.has_outer && !gradient_sharded_outer(group)) {
        const int64_t part = inner_part(group, Role::optimizer);
        needs.stage_outer = std::max(needs.stage_outer, aligned(part * group.bytes.reduce));
      }
    }
    needs.places.push_back(std::move(place));
    needs.parameters.push_back(parameters);
    needs.gradients.push_back(gradients);
  }
  return needs;
}

/// When each unit needs a slot for its parameters (from its gather to its release) and for its
/// gradients. A gradient slot stays taken until the next unit's gradients are complete: its
/// reduction runs meanwhile.
struct Lifetimes {
  std::vector<Lifetime> parameters;
  std::vector<Lifetime> gradients;
};

void collect(const Section& section, int32_t number, bool forward, size_t units, Lifetimes& all) {
  std::vector<int32_t> gathered(units, kNone);
  std::vector<int32_t> opened(units, kNone);
  std::vector<Lifetime> waiting;  // gradients under reduction
  const auto last = static_cast<int32_t>(section.instructions.size()) - 1;
  std::vector<bool> touched(units);
  for (int32_t i = 0; i <= last; ++i) {
    const auto& instruction = section.instructions[static_cast<size_t>(i)];
    if (instruction.unit == kNone) continue;
    const auto unit = static_cast<size_t>(instruction.unit);
    const bool uses_slot = instruction.slot != kNone;
    switch (instruction.action) {
      case Action::gather:
        if (gathered[unit] == kNone) gathered[unit] = i;
        touched[unit] = true;
        break;
      case Action::wait:  // kept since an earlier section
        if (uses_slot && gathered[unit] == kNone) gathered[unit] = touched[unit] ? i : 0;
        touched[unit] = true;
        break;
      case Action::release:
        all.parameters.push_back({instruction.unit, number, gathered[unit], i});
        gathered[unit] = kNone;
        break;
      case Action::open: opened[unit] = i; break;
      case Action::compute:
        if (forward || instruction.signals == kNone) break;
        for (auto& lifetime : waiting) {
          lifetime.end = i;
          all.gradients.push_back(lifetime);
        }
        waiting.clear();
        if (opened[unit] != kNone)
          waiting.push_back({instruction.unit, number, opened[unit], last});
        break;
      default: break;
    }
  }
  for (const auto& lifetime : waiting) all.gradients.push_back(lifetime);
  for (size_t unit = 0; unit < units; ++unit) {
    if (gathered[unit] == kNone) continue;
    all.parameters.push_back({static_cast<int32_t>(unit), number, gathered[unit], last});
  }
}

int32_t add_slot(std::vector<Slot>& slots, std::string name, int64_t bytes) {
  const int64_t offset = slots.empty() ? 0 : slots.back().offset + slots.back().bytes;
  slots.push_back({std::move(name), offset, bytes});
  return static_cast<int32_t>(slots.size()) - 1;
}

/// One slot per colour, as large as the largest of its units.
void add_slots(
    std::vector<Slot>& slots,
    const char* kind,
    const std::vector<int32_t>& colours,
    const std::vector<int64_t>& bytes,
    std::vector<Place>& places,
    int32_t Place::*member) {
  const int32_t count = colours.empty() ? 0 : *std::max_element(colours.begin(), colours.end()) + 1;
  for (int32_t colour = 0; colour < count; ++colour) {
    int64_t most = 0;
    for (size_t unit = 0; unit < colours.size(); ++unit) {
      if (colours[unit] == colour) most = std::max(most, bytes[unit]);
    }
    const int32_t slot = add_slot(slots, text(kind, ".", colour), most);
    for (size_t unit = 0; unit < colours.size(); ++unit) {
      if (colours[unit] == colour) places[unit].*member = slot;
    }
  }
}

ProgramBytes bytes_of(const std::vector<UnitSpec>& units, const std::vector<Slot>& slots) {
  ProgramBytes bytes;
  for (const auto& unit : units) {
    for (const auto& group : unit.groups) {
      bytes.model_weights += part_elements(group, Role::parameter) * group.bytes.model;
      if (!group.shares_weight) {
        bytes.main_weights += part_elements(group, Role::optimizer) * group.bytes.main;
      }
      if (group.trainable) {
        bytes.main_gradients += part_elements(group, Role::gradient) * group.bytes.gradient;
      }
    }
  }
  bytes.arena = slots.empty() ? 0 : slots.back().offset + slots.back().bytes;
  return bytes;
}

}  // namespace

StepTraffic& StepTraffic::operator+=(const StepTraffic& other) {
  for (const auto member :
       {&StepTraffic::all_gather, &StepTraffic::reduce_scatter, &StepTraffic::all_reduce}) {
    (this->*member).calls += (other.*member).calls;
    (this->*member).bytes += (other.*member).bytes;
  }
  return *this;
}

StepTraffic traffic_of(const Section& section) {
  StepTraffic sum;
  for (const auto& instruction : section.instructions) {
    if (instruction.axis == AxisKind::none) continue;
    const bool gathers =
        instruction.action == Action::gather || instruction.action == Action::refresh;
    if (!gathers && instruction.action != Action::reduce) continue;
    auto& kind = gathers               ? sum.all_gather
                 : instruction.scatter ? sum.reduce_scatter
                                       : sum.all_reduce;
    ++kind.calls;
    kind.bytes += instruction.bytes;
  }
  return sum;
}

Program Program::build(std::vector<UnitSpec> units, Order order, const ProgramOptions& options) {
  const auto count = static_cast<int32_t>(units.size());
  const UnitTree tree(order, count);
  auto needs = needs_of(units);
  const bool keeps = std::any_of(
      units.begin(), units.end(), [](const UnitSpec& unit) { return unit.keep_gathered; });

  Program program;
  program.units_ = std::move(units);
  program.order_ = std::move(order);
  program.options_ = options;
  const auto build_all = [&] {
    const EventTable events(program.units_, program.slots_);
    const auto stage = [&](const char* name) {
      const auto found = std::find_if(
          program.slots_.begin(), program.slots_.end(),
          [&](const Slot& slot) { return slot.name == name; });
      return found == program.slots_.end() ? kNone
                                           : static_cast<int32_t>(found - program.slots_.begin());
    };
    const SectionInput input{program.units_,         tree,
                             program.places_,        events,
                             options.prefetch_depth, stage("stage.reduce"),
                             stage("stage.outer")};
    program.forward_.clear();
    program.backward_.clear();
    for (size_t flags = 0; flags < (keeps ? 8 : 4); ++flags) {
      program.forward_.push_back(build_forward(input, forward_flags(flags)));
      program.backward_.push_back(build_backward(input, backward_flags(flags)));
    }
    program.update_ = build_update(input);
    program.events_ = events.names();
  };

  // First with a slot of its own for every unit, to learn how long each is needed.
  program.places_ = needs.places;
  for (size_t unit = 0; unit < needs.places.size(); ++unit) {
    if (needs.parameters[unit] > 0) {
      program.places_[unit].parameters = add_slot(program.slots_, "parameters", 0);
    }
    if (needs.gradients[unit] > 0) {
      program.places_[unit].gradients = add_slot(program.slots_, "gradients", 0);
    }
  }
  build_all();
  Lifetimes lifetimes;
  int32_t number = 0;
  for (const auto* sections : {&program.forward_, &program.backward_}) {
    for (const auto& section : *sections) {
      collect(
          section, number++, sections == &program.forward_, static_cast<size_t>(count), lifetimes);
    }
  }

  program.slots_.clear();
  program.places_ = needs.places;
  const auto colour = [&](const std::vector<Lifetime>& of, const std::vector<int64_t>& bytes,
                          const char* kind, int32_t Place::*member) {
    add_slots(program.slots_, kind, colour_slots(of, count), bytes, program.places_, member);
  };
  colour(lifetimes.parameters, needs.parameters, "parameters", &Place::parameters);
  colour(lifetimes.gradients, needs.gradients, "gradients", &Place::gradients);
  if (needs.stage_reduce > 0) add_slot(program.slots_, "stage.reduce", needs.stage_reduce);
  if (needs.stage_outer > 0) add_slot(program.slots_, "stage.outer", needs.stage_outer);
  build_all();
  program.bytes_ = bytes_of(program.units_, program.slots_);
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : program.facts()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  program.fingerprint_ = hash;
  prove(program);
  return program;
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

StepTraffic Program::traffic() const {
  StepTraffic sum;
  const int64_t passes = options_.micro_batches;
  for (int64_t pass = 0; pass < passes; ++pass) {
    sum += traffic_of(forward({.changed = pass == 0}));
    sum += traffic_of(backward({.first = pass == 0, .last = pass + 1 == passes, .kept = true}));
  }
  return sum;
}

}  // namespace sherd
