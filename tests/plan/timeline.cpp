// SPDX-License-Identifier: Apache-2.0
#include "plan/timeline.h"

#include <algorithm>

#include "plan/group_shape.h"

namespace sherd::testing {
namespace {

size_t at(int32_t number) {
  return static_cast<size_t>(number);
}

Piece piece_of(const Spreads& spreads) {
  if (spreads.inner != Spread::shard) return Piece::whole;
  return spreads.outer == Spread::shard ? Piece::over_both : Piece::over_inner;
}

/// The compute that a `wait` is for, as an index: its unit's next, unless it is released before.
int32_t find_compute(const Section& section, int32_t number, int32_t index) {
  const auto wait = section.instructions.begin() + number;
  const auto next = std::find_if(wait, section.instructions.end(), [&](const Instruction& later) {
    return later.unit == wait->unit &&
           (later.action == Action::compute || later.action == Action::release);
  });
  if (next == section.instructions.end() || next->action == Action::release) return kNone;
  return index + static_cast<int32_t>(next - wait);
}

}  // namespace

Timeline::Timeline(const Program& program, const Sequence& sequence)
    : program_(program), sequence_(sequence), signalled_(program.events().size(), {0, 0}) {
  add_groups();
  for (size_t i = 0; i < sequence.size(); ++i) issue(*sequence[i], static_cast<int32_t>(i));
  find_cells();
}

void Timeline::add_groups() {
  std::vector<int> calls(program_.units().size(), 0);
  for (const auto& visit : program_.order()) calls[at(visit.unit)] += visit.enter ? 1 : 0;
  for (size_t unit = 0; unit < program_.units().size(); ++unit) {
    first_group_.push_back(static_cast<int32_t>(groups_.size()));
    int32_t number = 0;
    for (const auto& spec : program_.units()[unit].groups) {
      const auto gradient = piece_of(spec.placement.spreads(Role::gradient));
      groups_.push_back(
          {.unit = static_cast<int32_t>(unit),
           .group = number++,
           .name = spec.name,
           .rests = piece_of(spec.placement.spreads(Role::parameter)),
           .updates = piece_of(spec.placement.spreads(Role::optimizer)),
           .gradient_inner = gradient != Piece::whole,
           .gradient_outer = gradient == Piece::over_both,
           .has_outer = spec.has_outer,
           .learns = spec.trainable && calls[unit] > 0,
           .shares_weight = spec.shares_weight,
           .transposes = spec.encoding.transposes,
           .two_ways = spec.encoding.two_ways,
           .exchanges = spec.encoding.exchanged > 0,
           .calls = calls[unit]});
    }
  }
  first_group_.push_back(static_cast<int32_t>(groups_.size()));
}

bool Timeline::is_first(const Section& section) const {
  for (const bool last : {false, true}) {
    for (const bool gathered : {false, true}) {
      if (&section == &program_.backward({.first = true, .last = last, .still_gathered = gathered}))
        return true;
    }
  }
  return false;
}

void Timeline::issue(const Section& section, int32_t number) {
  const bool backward = section.kind == Section::Kind::backward;
  const bool first = backward && is_first(section);
  begun_.assign(program_.units().size(), false);
  const auto& list = section.instructions;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto& instruction = list[i];
    Issued issued;
    issued.instruction = &instruction;
    issued.section = number;
    issued.number = static_cast<int32_t>(i);
    issued.backward = backward;
    issued.pass = backward ? passes_ : kNone;
    if (instruction.unit != kNone) {
      issued.group = first_group(instruction.unit) + std::max(instruction.group, 0);
    }
    if (instruction.action == Action::compute) {
      issued.begins = first && !begun_[at(instruction.unit)];
      begun_[at(instruction.unit)] = true;
    }
    if (instruction.action == Action::update) {
      issued.step = {first_pass_, passes_};
      first_pass_ = passes_;
    }
    if (instruction.action == Action::wait) {
      issued.until = find_compute(section, issued.number, static_cast<int32_t>(issued_.size()));
    }
    order(issued);
    issued_.push_back(std::move(issued));
    add_uses(issued_.back());
  }
  if (backward) ++passes_;
}

/// After its predecessor on the stream, and after each event as it was last signalled.
void Timeline::order(Issued& issued) {
  const auto stream = static_cast<size_t>(issued.instruction->stream);
  for (size_t s = 0; s < kStreams; ++s) {
    issued.issued_before[s] = static_cast<int32_t>(queues_[s].size());
  }
  for (const int32_t event : issued.instruction->waits) {
    const auto& [other, done] = signalled_[at(event)];
    issued.after[other] = std::max(issued.after[other], done);
  }
  queues_[stream].push_back(static_cast<int32_t>(issued_.size()));
  const int32_t signals = issued.instruction->signals;
  if (signals != kNone) signalled_[at(signals)] = {stream, issued.issued_before[stream] + 1};
}

void Timeline::add_uses(Issued& issued) {
  using What = Use::What;
  const auto& instruction = *issued.instruction;
  const int32_t group = issued.group;
  const bool has_slot = instruction.slot != kNone;
  switch (instruction.action) {
    case Action::refresh: return use_group(issued, What::weight, true, group);
    case Action::gather: {
      const bool from_slot =
          instruction.axis == AxisKind::inner && groups_[at(group)].rests == Piece::over_both;
      if (!from_slot) use_group(issued, What::weight, false, group);
      return use_slot(issued, What::parameters, true, group, instruction.slot);
    }
    case Action::transpose:
      if (groups_[at(group)].gathered()) {
        use_slot(issued, What::parameters, false, group, instruction.also_reads);
      } else {
        use_group(issued, What::weight, false, group);
      }
      return use_slot(issued, What::transposed, true, group, instruction.slot);
    case Action::exchange:
      for (int32_t each = 0; each < static_cast<int32_t>(groups_.size()); ++each) {
        if (groups_[at(each)].exchanges) use_group(issued, What::main_weight, false, each);
      }
      return;
    case Action::stage:
      use_group(issued, What::main_gradient, false, group);
      return use_slot(issued, What::gradients, true, group, instruction.slot);
    case Action::reduce:
      if (!has_slot) return use_group(issued, What::main_gradient, true, group);
      return use_slot(issued, What::gradients, true, group, instruction.slot);
    case Action::accumulate:
      // A write: what leaves the slot is gone from it.
      if (has_slot) use_slot(issued, What::gradients, true, group, instruction.slot);
      return use_group(issued, What::main_gradient, true, group);
    case Action::update:
    case Action::publish:
      for (int32_t each = 0; each < static_cast<int32_t>(groups_.size()); ++each) {
        const auto& facts = groups_[at(each)];
        if (!facts.learns) continue;
        const bool update = instruction.action == Action::update;
        if (update) use_group(issued, What::main_gradient, false, each);
        if (update || !facts.shares_weight) use_group(issued, What::main_weight, update, each);
        if (update == facts.shares_weight) use_group(issued, What::weight, true, each);
      }
      return;
    case Action::drain: return;
    default: return add_uses_of_unit(issued);
  }
}

void Timeline::add_uses_of_unit(Issued& issued) {
  using What = Use::What;
  const auto& instruction = *issued.instruction;
  const int32_t unit = instruction.unit;
  const auto action = instruction.action;
  const bool release_of_transposed = action == Action::release && instruction.slot != kNone &&
                                     instruction.slot == program_.slots_of(unit).transposed;
  for (int32_t group = first_group(unit); group < first_group(unit + 1); ++group) {
    const auto& facts = groups_[at(group)];
    if (facts.transposes && (release_of_transposed || (issued.backward && action != Action::open &&
                                                       action != Action::release))) {
      use_slot(
          issued, What::transposed, release_of_transposed, group,
          release_of_transposed ? instruction.slot : instruction.also_reads);
    }
    if (release_of_transposed) continue;
    if (action != Action::open) {
      if (facts.gathered()) {
        const bool release = action == Action::release;
        use_slot(issued, What::parameters, release, group, instruction.slot);
      } else if (action != Action::release) {
        use_group(issued, What::weight, false, group);
      }
    }
    const bool gradients = action == Action::open || (action == Action::compute && issued.backward);
    if (!gradients || !facts.learns) continue;
    if (facts.gradient_inner) {
      const int32_t own = program_.slots_of(unit).gradients;
      use_slot(
          issued, What::gradients, true, group, action == Action::open ? instruction.slot : own);
    } else if (action == Action::compute) {
      use_group(issued, What::main_gradient, true, group);
    }
  }
}

void Timeline::use_slot(Issued& issued, Use::What what, bool write, int32_t group, int32_t slot) {
  const auto& facts = groups_[at(group)];
  const auto& spec = program_.units()[at(facts.unit)].groups[at(facts.group)];
  const auto& place = program_.slots_of(facts.unit);
  if (slot == kNone) {
    issued.fault = "needs a slot and has none";
    return;
  }
  const auto action = issued.instruction->action;
  const bool outer = issued.instruction->axis == AxisKind::outer;
  const bool own =
      action == Action::compute || action == Action::open ||
      (action != Action::stage && (outer ? facts.gradient_outer : facts.gradient_inner));
  int64_t begin = program_.slots()[at(slot)].offset;
  int64_t bytes = spec.elements * spec.bytes.reduce;
  if (what == Use::What::parameters) {
    begin += place.parameter_offsets[at(facts.group)];
    const bool two_ways =
        action == Action::gather ? issued.instruction->two_ways : facts.two_ways && issued.backward;
    bytes = payload_offsets(spec, two_ways).bytes;
  } else if (what == Use::What::transposed) {
    begin += place.transposed_offsets[at(facts.group)];
    bytes = payload_offsets(spec, false).bytes;
  } else if (own) {
    begin += place.gradient_offsets[at(facts.group)];
  } else if (outer && facts.updates != Piece::whole) {
    bytes /= spec.axis_sizes.inner;
  }
  if (begin < 0 || begin + bytes > program_.bytes().arena) {
    issued.fault = "reaches beyond the arena";
    return;
  }
  // The cells are known when all is issued: until then the use says which extent it covers.
  issued.uses.push_back({what, write, group, kNone, static_cast<int32_t>(extents_.size())});
  extents_.emplace_back(begin, begin + bytes);
}

void Timeline::use_group(Issued& issued, Use::What what, bool write, int32_t group) {
  // Numbered among its kind, until the cells, which come first, are counted.
  issued.uses.push_back({what, write, group, group, group + 1});
}

/// Cuts the arena wherever a use begins or ends, so that a use covers whole cells.
void Timeline::find_cells() {
  edges_.push_back(0);
  for (const auto& extent : extents_) {
    edges_.push_back(extent.first);
    edges_.push_back(extent.second);
  }
  std::sort(edges_.begin(), edges_.end());
  edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
  const auto cell = [&](int64_t edge) {
    return static_cast<int32_t>(
        std::lower_bound(edges_.begin(), edges_.end(), edge) - edges_.begin());
  };
  const auto groups = static_cast<int32_t>(groups_.size());
  for (auto& issued : issued_) {
    for (auto& use : issued.uses) {
      if (use.begin == kNone) {
        const auto& extent = extents_[at(use.end)];
        use.begin = cell(extent.first);
        use.end = cell(extent.second);
        continue;
      }
      const int32_t kind = use.what == Use::What::weight        ? 0
                           : use.what == Use::What::main_weight ? 1
                                                                : 2;
      use.begin += cells() + kind * groups;
      use.end += cells() + kind * groups;
    }
  }
}

std::string Timeline::resource_name(int32_t resource) const {
  if (resource < cells()) {
    return "bytes " + std::to_string(edges_[at(resource)]) + " to " +
           std::to_string(edges_[at(resource) + 1]);
  }
  const auto groups = static_cast<int32_t>(groups_.size());
  const char* const kinds[] = {"the weight", "the main weight", "the main gradient"};
  const int32_t kind = (resource - cells()) / groups;
  return std::string(kinds[kind]) + " of '" + groups_[at((resource - cells()) % groups)].name + "'";
}

}  // namespace sherd::testing
