// SPDX-License-Identifier: Apache-2.0
// A step that is recorded as a graph: the host goes through it once, and the device repeats it.
#include <c10/util/Exception.h>

#include "shard/random_state.h"
#include "shard/runtime.h"

namespace sherd {

void Runtime::check_capturable() {
  check_resting("StepGraph::capture");
  check_between_steps("StepGraph::capture");
  TORCH_CHECK(
      confirmed_ && verified_ && changed_ && step_ > 0, "[shard.graph] a step of '", root().name(),
      "' is captured before one was made: run two steps on the graph's stream first");
}

/// All streams of the program come from the capturing one, and what was signalled before is behind
/// it.
void Runtime::begin_capture() {
  capturing_ = true;
  RandomState::leave_devices(true);
  lanes_->fork();
}

void Runtime::end_capture() {
  lanes_->rejoin();
  capturing_ = false;
  RandomState::leave_devices(false);
  fixed_ = "a graph of the step was captured";
  // The host has gone through a step that the device has not made.
  --step_;
  --weights_;
}

void Runtime::before_replay() {
  check_resting("StepGraph::replay");
  check_between_steps("StepGraph::replay");
  agreement_->check(/*block=*/false);
  report_due_ = agreement_->take_news() || report_due_;
  if (std::exchange(report_due_, false)) report();
}

void Runtime::after_replay() {
  watch_.tell();
  ++step_;
  ++weights_;
  const bool news = watch_.has_news();
  agreement_->start(
      {Agreement::Kind::pass, step_, static_cast<int64_t>(program_->fingerprint()), 0, news},
      [step = step_] { return c10::str("replays the graph of step ", step); });
}

}  // namespace sherd
