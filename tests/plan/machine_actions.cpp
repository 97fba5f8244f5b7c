// SPDX-License-Identifier: Apache-2.0
// What each instruction needs to find when it starts, and what it leaves behind when it ends.
#include "plan/abstract_machine.h"

namespace sherd::testing {
namespace {

using What = Use::What;
using Kind = Content::Kind;

template <class Number>
size_t at(Number number) {
  return static_cast<size_t>(number);
}

}  // namespace

// ---- needs
// ---------------------------------------------------------------------------------------

void AbstractMachine::check(const Issued& issued) {
  const auto& instruction = *issued.instruction;
  switch (instruction.action) {
    case Action::gather:
      if (instruction.axis == AxisKind::outer) return;
      if (timeline_->groups()[at(issued.group)].rests != Piece::over_both) return;
      return check_cells(issued, issued.uses.back(), {Kind::piece, issued.group, 0, {}});
    case Action::transpose:
      for (const auto& use : issued.uses) {
        if (use.what == What::parameters)
          check_cells(issued, use, {Kind::parameters, use.group, 0, {}});
      }
      return;
    case Action::publish:
      for (size_t group = 0; group < group_count(); ++group) {
        const auto& facts = timeline_->groups()[group];
        if (!facts.exchanges || !facts.learns) continue;
        for (const int32_t version : scales_[group]) {
          if (version == main_weights_[group]) continue;
          fail(issued, "the scales of '" + facts.name + "' are not known to all ranks");
        }
      }
      return;
    case Action::wait: return check_parameters(issued);
    case Action::compute:
      check_parameters(issued);
      for (const auto& use : issued.uses) {
        if (use.what == What::gradients)
          check_cells(issued, use, {Kind::gradients, use.group, 0, {}});
      }
      return;
    case Action::reduce:
    case Action::accumulate:
      for (const auto& use : issued.uses) {
        if (use.what == What::gradients)
          check_cells(issued, use, {Kind::gradients, use.group, 0, {}});
      }
      return;
    case Action::update: return check_update(issued);
    default: return;
  }
}

/// The cells hold one content, and it is of the group and kind that are asked for.
void AbstractMachine::check_cells(const Issued& issued, const Use& use, const Content& like) const {
  const auto& first = cells_[at(use.begin)].content;
  const bool whole_for_piece = like.kind == Kind::piece && first.kind == Kind::parameters;
  if ((first.kind != like.kind && !whole_for_piece) || first.group != like.group) {
    fail(issued, "does not find what it reads in " + timeline_->resource_name(use.begin));
  }
  for (int32_t cell = use.begin; cell < use.end; ++cell) {
    if (cells_[at(cell)].content == first) continue;
    fail(issued, "finds something else in " + timeline_->resource_name(cell));
  }
}

void AbstractMachine::check_parameters(const Issued& issued) const {
  for (const auto& use : issued.uses) {
    const auto group = at(use.group);
    int32_t version = 0;
    if (use.what == What::parameters) {
      check_cells(issued, use, {Kind::parameters, use.group, 0, {}});
      version = cells_[at(use.begin)].content.version;
    } else if (use.what == What::transposed) {
      check_cells(issued, use, {Kind::transposed, use.group, 0, {}});
      version = cells_[at(use.begin)].content.version;
    } else if (use.what == What::weight) {
      version = weights_[group][at(Piece::whole)];
    } else {
      continue;
    }
    if (version == main_weights_[group]) continue;
    fail(issued, "'" + timeline_->groups()[group].name + "' is older than its main weight");
  }
}

void AbstractMachine::check_update(const Issued& issued) const {
  for (size_t s = 0; s < kStreams; ++s) {
    if (done_[s] >= issued.issued_before[s]) continue;
    fail(issued, std::string("stream ") + to_text(static_cast<Stream>(s)) + " still runs");
  }
  for (size_t group = 0; group < group_count(); ++group) {
    const auto& facts = timeline_->groups()[group];
    if (!facts.learns) continue;
    Sum complete;
    for (int32_t pass = issued.step.first; pass < issued.step.second; ++pass) {
      const auto outer = static_cast<uint8_t>(facts.has_outer ? 1 : 0);
      complete.of[at(pass)] = {static_cast<uint8_t>(facts.calls), 1, outer, 1};
    }
    if (main_gradients_[group] == complete) continue;
    fail(issued, "the main gradient of '" + facts.name + "' is not the mean of the step's passes");
  }
}

// ---- effects
// -------------------------------------------------------------------------------------

void AbstractMachine::apply(const Issued& issued) {
  const auto& instruction = *issued.instruction;
  switch (instruction.action) {
    case Action::compute: return compute(issued);
    case Action::release:
      for (const auto& use : issued.uses) give_up(issued, use);
      return;
    case Action::open:
      for (const auto& use : issued.uses) fill(use, {Kind::gradients, use.group, 0, {}});
      return;
    case Action::wait:
    case Action::drain: return;
    case Action::exchange: return exchange(issued);
    case Action::update:
    case Action::publish: return change_weights(issued);
    default: return apply_to_group(issued);
  }
}

void AbstractMachine::apply_to_group(const Issued& issued) {
  const auto group = at(issued.group);
  const bool outer = issued.instruction->axis == AxisKind::outer;
  switch (issued.instruction->action) {
    case Action::refresh: {
      auto& versions = weights_[group];
      const auto from = outer ? Piece::over_both : Piece::over_inner;
      versions[at(outer ? Piece::over_inner : Piece::whole)] = versions[at(from)];
      return;
    }
    case Action::gather: return gather(issued);
    case Action::transpose: {
      const auto& source = issued.uses.front();
      const bool slot = source.what == What::parameters;
      const int32_t version =
          slot ? cells_[at(source.begin)].content.version : weights_[group][at(Piece::whole)];
      return fill(issued.uses.back(), {Kind::transposed, issued.group, version, {}});
    }
    case Action::stage:
      return fill(issued.uses.back(), {Kind::gradients, issued.group, 0, main_gradients_[group]});
    case Action::reduce: return reduce(issued);
    case Action::accumulate: return accumulate(issued);
    default: return;
  }
}

void AbstractMachine::gather(const Issued& issued) {
  const auto& use = issued.uses.back();
  const bool outer = issued.instruction->axis == AxisKind::outer;
  const auto rests = timeline_->groups()[at(issued.group)].rests;
  const bool from_slot = !outer && rests == Piece::over_both;
  const int32_t version =
      from_slot ? cells_[at(use.begin)].content.version : weights_[at(issued.group)][at(rests)];
  fill(use, {outer ? Kind::piece : Kind::parameters, issued.group, version, {}});
}

void AbstractMachine::compute(const Issued& issued) {
  for (const auto& use : issued.uses) {
    if (!use.write) continue;
    if (use.what == What::main_gradient) {
      auto& sum = main_gradients_[at(use.group)];
      if (issued.begins) sum = {};
      sum.add_call(issued.pass);
      continue;
    }
    for (int32_t cell = use.begin; cell < use.end; ++cell) {
      cells_[at(cell)].content.sum.add_call(issued.pass);
    }
  }
  ++computed_[at(issued.instruction->unit)];
  auto& since = computing_[at(issued.instruction->unit)];
  if (since == kNone) return;
  for (const auto& use : timeline_->issued()[at(since)].uses) occupy(use, -1);
  since = kNone;
}

void AbstractMachine::reduce(const Issued& issued) {
  const bool outer = issued.instruction->axis == AxisKind::outer;
  const auto what = outer ? &Share::outer : &Share::inner;
  const auto& use = issued.uses.back();
  if (use.what == What::main_gradient) return main_gradients_[at(use.group)].count(what);
  for (int32_t cell = use.begin; cell < use.end; ++cell) {
    cells_[at(cell)].content.sum.count(what);
  }
}

/// A copy of what is in the main gradient already comes back as it went; all else is divided.
void AbstractMachine::accumulate(const Issued& issued) {
  const auto& facts = timeline_->groups()[at(issued.group)];
  auto& main = main_gradients_[at(issued.group)];
  const auto& source = issued.uses.front();
  const bool in_place = source.what == What::main_gradient;
  Sum sum = in_place ? main : cells_[at(source.begin)].content.sum;
  const bool outer = issued.instruction->axis == AxisKind::outer;
  if (!outer || facts.gradient_outer) sum.count(&Share::divided);
  if (issued.instruction->overwrite) main = {};
  main.add(sum);
  if (!in_place) give_up(issued, source);
}

void AbstractMachine::change_weights(const Issued& issued) {
  const bool update = issued.instruction->action == Action::update;
  updated_ += update ? 1 : 0;
  for (const auto& use : issued.uses) {
    const auto group = at(use.group);
    if (use.what == What::main_weight && update) {
      ++main_weights_[group];
      // What the optimizer is not sharded over, all ranks know by themselves.
      const auto updates = timeline_->groups()[group].updates;
      if (updates == Piece::whole) scales_[group][0] = main_weights_[group];
      if (updates != Piece::over_both) scales_[group][1] = main_weights_[group];
    }
    if (use.what != What::weight) continue;
    const auto updates = at(timeline_->groups()[group].updates);
    for (size_t piece = 0; piece <= updates; ++piece) weights_[group][piece] = main_weights_[group];
  }
}

void AbstractMachine::exchange(const Issued& issued) {
  const auto axis = static_cast<size_t>(issued.instruction->axis == AxisKind::outer);
  for (const auto& use : issued.uses) scales_[at(use.group)][axis] = main_weights_[at(use.group)];
}

void AbstractMachine::fill(const Use& use, const Content& content) {
  for (int32_t cell = use.begin; cell < use.end; ++cell) cells_[at(cell)].content = content;
}

void AbstractMachine::give_up(const Issued& issued, const Use& use) {
  fill(use, {});
  for (int32_t cell = use.begin; cell < use.end; ++cell) {
    auto& held_by = cells_[at(cell)].holder;
    if (held_by == holder_of(issued, use)) held_by = kNone;
  }
}

}  // namespace sherd::testing
