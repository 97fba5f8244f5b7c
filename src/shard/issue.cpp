// SPDX-License-Identifier: Apache-2.0
// Executing instructions.
#include <c10/util/Exception.h>

#include <thread>

#include "shard/runtime.h"

namespace sherd {

void Runtime::set_recorder(std::shared_ptr<Recorder> recorder) {
  recorder_ = std::move(recorder);
  streams_->set_recorder(recorder_);
}

void Runtime::run(const Boundary& boundary) {
  for (int32_t i = boundary.begin; i < boundary.end; ++i) {
    issue(section_->instructions[static_cast<size_t>(i)]);
  }
}

void Runtime::issue(const Instruction& instruction) {
  if (instruction.stream == Stream::compute) return issue_on_compute(instruction);
  if (world_.device().is_meta()) return;  // a rehearsal without memory has nothing to move
  const auto& group = *units_[static_cast<size_t>(instruction.unit)]
                           ->groups()[static_cast<size_t>(instruction.group)];
  const ProfileScope scope(group.range_name(instruction.action));
  const auto axis = instruction.axis;
  using enum ProgramStreams::Kind;
  const bool of_gradients = instruction.action == Action::reduce ||
                            instruction.action == Action::stage ||
                            instruction.action == Action::accumulate;
  if (of_gradients && !trains_) {
    // There are none; what waits for the instruction still has to see its end.
    return streams_->issue(instruction, kernel, [](Communicator::OnStream) { return Work(); });
  }
  switch (instruction.action) {
    case Action::refresh:
      ++issued_;
      return streams_->issue(
          instruction, collective, [&group, axis](Communicator::OnStream stream) {
            return group.transfers().refresh(axis, stream);
          });
    case Action::gather:
      ++issued_;
      take_parameters(instruction);
      return streams_->issue(
          instruction, collective, [&group, axis](Communicator::OnStream stream) {
            return group.transfers().gather(axis, stream);
          });
    case Action::reduce:
      ++issued_;
      return streams_->issue(
          instruction, collective,
          [&group, axis, scatter = instruction.scatter](Communicator::OnStream stream) {
            return group.transfers().reduce(axis, scatter, stream);
          });
    case Action::stage:
      return streams_->issue(instruction, kernel, [&group, axis](Communicator::OnStream) {
        group.transfers().stage(axis);
        return Work();
      });
    case Action::accumulate:
      return streams_->issue(
          instruction, kernel,
          [this, &group, &instruction, moment = moment()](Communicator::OnStream) mutable {
            group.transfers().accumulate(instruction.axis, instruction.overwrite);
            moment.last = moment.last && !group.transfers().accumulates_after(instruction.axis);
            watch_.look_after_reduction(instruction.unit, instruction.group, moment);
            return Work();
          });
    default: TORCH_INTERNAL_ASSERT(false, "[shard] ", to_text(instruction.action), " off compute");
  }
}

/// Eager: what is allocated here may have been compute's a moment ago.
void Runtime::take_parameters(const Instruction& instruction) {
  if (!is_eager()) return;
  units_[static_cast<size_t>(instruction.unit)]
      ->groups()[static_cast<size_t>(instruction.group)]
      ->transfers()
      .allocate_parameter_slot();
  streams_->join(instruction.stream);
}

/// Eager: compute has waited for all reductions but the last that was begun.
void Runtime::take_gradients(Unit& unit) {
  while (reducing_.size() > 1) drop_gradients();
  for (const auto& group : unit.groups()) group->transfers().allocate_gradient_slot();
}

void Runtime::drop_gradients() {
  for (const auto& group : reducing_.front()->groups()) group->transfers().free_gradient_slot();
  reducing_.pop_front();
}

void Runtime::issue_on_compute(const Instruction& instruction) {
  if (!recorder_) return run_on_compute(instruction);
  const auto number = recorder_->begin(instruction, {});
  run_on_compute(instruction);
  recorder_->end(number, {});
}

void Runtime::run_on_compute(const Instruction& instruction) {
  auto* unit = instruction.unit == kNone ? nullptr : units_[static_cast<size_t>(instruction.unit)];
  switch (instruction.action) {
    case Action::wait:
      look_at_agreement(/*block=*/!world_.device().is_cuda());
      while (follows_ && phase_ == Phase::forward && !streams_->have_happened(instruction.waits)) {
        follow_others(/*block=*/false);
        std::this_thread::sleep_for(kFollowPause);
      }
      streams_->wait(instruction.waits);
      unit->show();
      streams_->disturb_compute();
      return;
    case Action::compute:
      // Complete where it signals: no later call of the unit adds to its gradients.
      if (phase_ == Phase::backward && instruction.signals != kNone) {
        zero_unwritten_gradients(*unit);
        const bool opened = program_->place(instruction.unit).gradients != kNone;
        if (is_eager() && opened) reducing_.push_back(unit);  // it begins with what comes next
      }
      break;
    case Action::release: unit->hide(); break;
    case Action::open:
      streams_->wait(instruction.waits);
      if (is_eager()) take_gradients(*unit);
      for (const auto& group : unit->groups()) {
        if (group->layout().shards_gradients()) group->inbox().mark_all_unwritten();
      }
      break;
    case Action::drain:
      streams_->wait(instruction.waits);
      while (!reducing_.empty()) drop_gradients();
      break;
    default:
      TORCH_INTERNAL_ASSERT(false, "[shard] ", to_text(instruction.action), " is not issued");
  }
  if (instruction.signals != kNone) streams_->signal(instruction.signals);
}

/// What nothing was written to is zero: in the slot for this pass, in the main gradient for the
/// step.
void Runtime::zero_unwritten_gradients(Unit& unit) {
  unit.collecting = false;
  if (!trains_) return;
  for (size_t i = 0; i < unit.groups().size(); ++i) {
    auto& group = *unit.groups()[i];
    if (!group.traits().trainable) continue;
    if (group.layout().shards_gradients() || backward_flags_.last) {
      group.inbox().zero_unwritten();
    } else {
      group.inbox().flush();
    }
    watch_.look_before_reduction(unit.number, static_cast<int32_t>(i), moment());
  }
}

/// On CPU a gather can't end before all ranks have come this far, so waiting costs nothing, and a
/// difference is found before anything is computed from it. On CUDA the host looks as it goes.
void Runtime::look_at_agreement(bool block) {
  if (agreement_->is_open() && !agreement_->is_following()) agreement_->check(block);
}

}  // namespace sherd
