// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/step_state.h"

#include <stdexcept>
#include <string>

namespace sherd {

void StepState::expect(Phase phase, const char* transition) const {
  if (phase_ == phase) return;
  throw std::logic_error(
      std::string("[shard] ") + transition + " in phase " +
      std::to_string(static_cast<int>(phase_)));
}

void StepState::begin_forward() {
  expect(Phase::resting, "begin_forward");
  phase_ = Phase::forward;
}

void StepState::end_forward() {
  expect(Phase::forward, "end_forward");
  phase_ = Phase::resting;
}

void StepState::note_gathered(bool train) {
  weights_changed_ = false;
  if (train) still_gathered_ = true;
}

void StepState::set_backward(bool trains) {
  trains_ = trains;
  backward_flags_ = {
      trains && backwards_done_ == 0, trains && backwards_done_ + 1 == micro_batches_,
      still_gathered_};
}

void StepState::begin_backward() {
  expect(Phase::resting, "begin_backward");
  phase_ = Phase::backward;
}

void StepState::end_backward() {
  expect(Phase::backward, "end_backward");
  phase_ = Phase::resting;
  still_gathered_ = false;
}

void StepState::count_backward() {
  if (trains_) ++backwards_done_;
}

bool StepState::fail() noexcept {
  if (is_between_passes()) return false;
  if (phase_ == Phase::backward && trains_) {
    backwards_done_ = 0;
    micro_batches_ = planned_micro_batches_;
    incomplete_gradients_ = true;
  }
  phase_ = Phase::failed;
  still_gathered_ = false;
  return true;
}

void StepState::recover() {
  expect(Phase::failed, "recover");
  phase_ = Phase::resting;
  passes_ = 0;
  incomplete_gradients_ = false;
}

void StepState::end_step() {
  weights_changed_ = true;
  ++weight_version_;
  still_gathered_ = divided_ = false;
  backwards_done_ = passes_ = 0;
  micro_batches_ = planned_micro_batches_;
  ++step_;
}

void StepState::drop_backwards() {
  divided_ = false;
  backwards_done_ = passes_ = 0;
  micro_batches_ = planned_micro_batches_;
}

void StepState::note_edit() {
  still_gathered_ = false;
  ++weight_version_;
}

void StepState::begin_capture() {
  weights_changed_ = true;
  still_gathered_ = false;
}

void StepState::end_capture() {
  --step_;
  --weight_version_;
}

void StepState::note_replay() {
  weights_changed_ = true;
  still_gathered_ = false;
  ++step_;
  ++weight_version_;
}

}  // namespace sherd
