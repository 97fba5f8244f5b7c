// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/backward.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "shard/runtime/failure.h"

namespace sherd {

void Backward::begin(const std::shared_ptr<Pass>& pass) {
  auto& state = parts_.state;
  const auto& graph = parts_.graph;
  const auto& root = parts_.units.root();
  parts_.units.check_none_deleted();
  TORCH_CHECK(
      state.is_between_passes(), "[shard] a backward begins while the forward of '", root.name(),
      "' is under way");
  if (state.has_failed()) recover(parts_);
  // Note [Backwards of a step]
  // A backward that brings a gradient to no parameter (autograd::grad of an input, a model that is
  // completely frozen) gathers what it needs, reduces nothing, and does not count for the step.
  const bool trains = parts_.units.is_reached();
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  partial_ = wanted && !wanted->empty();
  TORCH_CHECK(
      !trains || !state.has_all_backwards(), "[shard] backward ", state.backwards_done() + 1,
      " of '", root.name(), "', but a step has ", state.micro_batches(),
      ": update and publish first, or say another number with sherd::micro_batches");
  parts_.check_published();
  TORCH_CHECK(
      pass->weight_version == state.weight_version(), "[shard] a backward of '", root.name(),
      "' belongs to a forward that was made before the weights changed: run each backward before "
      "the update, or the forward again");
  if (pass->program != parts_.program.shared()) {
    TORCH_CHECK(
        graph.addresses_pinned_by.empty(), "[shard] a backward of '", root.name(),
        "' belongs to a forward that was made with another program, but ",
        graph.addresses_pinned_by, ", which has this one's addresses: run the backward before");
    parts_.use(pass->program);
    parts_.agreement.set_program_agreed(true);
  }
  pass_ = pass;
  frozen_before_ = state.frozen;
  set_frozen(parts_.units.frozen());
  state.set_backward(trains);
  const auto& flags = state.backward_flags();
  section_ = &parts_.program->backward(flags);
  cursor_ = 0;
  if (const auto& recorder = parts_.program.recorder()) {
    recorder->begin_section(section_->name, Section::Kind::backward);
  }
  parts_.record_section(*section_);
  const auto followed = parts_.follower.take_followed();
  // A rank that has followed the others throws alone if it differs from them. Its backward is under
  // way then, so that it fails and the others hear of it.
  if (followed) state.begin_backward();
  parts_.agreement.begin_pass(
      trains ? "a backward" : "a backward that reaches no parameter",
      (trains ? 8 : 16) | flags.first | flags.last << 1 | flags.still_gathered << 2, *section_,
      *pass_, followed);
  parts_.executor.begin(*section_);
  parts_.exchanges.begin(pass_, Section::Kind::backward);
  if (!followed) state.begin_backward();
  for (auto* unit : parts_.units) {
    unit->activity().set_collecting(false);
    for (const auto& group : unit->groups()) {
      if (!flags.first) continue;
      group->inbox().begin_step();
      if (!group->layout().shards_gradients()) group->inbox().mark_all_unwritten();
    }
  }
}

/// Parameters that a failed pass found frozen are forgotten, too: if that was where the ranks
/// differed, their next records would still do so.
void Backward::reset() noexcept {
  pass_.reset();
  parts_.exchanges.forget();
  set_frozen(std::move(frozen_before_));
}

void Backward::set_frozen(std::vector<bool> frozen) noexcept {
  if (frozen == parts_.state.frozen) return;
  parts_.state.frozen = std::move(frozen);
  ++parts_.graph.update_version;
}

bool Backward::is_of(const std::shared_ptr<Pass>& pass) const {
  return parts_.state.phase() == StepState::Phase::backward && pass_ == pass;
}

bool Backward::enter(int32_t position) {
  return run_until(section_->entered[in_program(position)]);
}

void Backward::enter_recompute(int32_t position) {
  const int32_t again = section_->recomputed[in_program(position)];
  run_until(again == kNone ? section_->entered[in_program(position)] : again);
}

void Backward::leave(int32_t position) {
  const auto& boundaries = section_->boundaries;
  for (size_t i = cursor_; i < boundaries.size(); ++i) {
    if (boundaries[i].kind != Boundary::Kind::exit ||
        boundaries[i].position != pass_->position_in_program(position)) {
      continue;
    }
    run_until(static_cast<int32_t>(i));
    return;
  }
}

std::shared_ptr<Pass> Backward::finish() {
  parts_.exchanges.end();
  run_until(static_cast<int32_t>(section_->boundaries.size()) - 1);
  return std::exchange(pass_, nullptr);
}

/// Returns whether there was anything to run.
bool Backward::run_until(int32_t last) {
  const bool runs = cursor_ <= static_cast<size_t>(last);
  for (; cursor_ <= static_cast<size_t>(last); ++cursor_) {
    const auto& boundary = section_->boundaries[cursor_];
    parts_.executor.run(boundary);
    if (boundary.unit == kNone) continue;
    auto& unit = parts_.units[boundary.unit];
    switch (boundary.kind) {
      case Boundary::Kind::exit: unit.leave(); break;
      case Boundary::Kind::recompute: break;
      default:
        unit.activity().enter_backward();
        unit.activity().set_collecting(parts_.state.trains());
    }
  }
  return runs;
}

}  // namespace sherd
