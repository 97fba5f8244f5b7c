// SPDX-License-Identifier: Apache-2.0
// A step that is recorded as a graph: the host goes through it once, and the device repeats it.
#include <c10/util/Exception.h>

#include "device/random_state.h"
#include "shard/runtime.h"

namespace sherd {

void Runtime::check_capturable() {
  check_resting("StepGraph::capture");
  check_between_steps("StepGraph::capture");
  TORCH_CHECK(
      order_agreed_ && program_agreed_ && step_ > 0, "[shard.graph] a step of '", root().name(),
      "' is captured before one was made: run two steps on the graph's stream first");
  TORCH_CHECK(
      frozen_now() == frozen_, "[shard.graph] parameters of '", root().name(),
      "' were frozen or made trainable since its last step: run one outside the graph first");
}

/// All streams of the program come from the capturing one, and what was signalled before is behind
/// it. Each replay comes after an update.
void Runtime::begin_capture() {
  capturing_ = true;
  changed_ = true;
  units_stay_gathered_ = false;
  tokens_captured_ = false;
  RandomState::set_capturing(world_.device());
  streams_->fork();
}

void Runtime::end_capture() {
  streams_->rejoin();
  stop_capturing();
  addresses_pinned_by_ = "a graph of the step was captured";
  // The host has gone through a step that the device has not made.
  --step_;
  --weight_version_;
}

void Runtime::stop_capturing() noexcept {
  capturing_ = false;
  RandomState::set_capturing(std::nullopt);
}

/// All ranks know by now what the replay before has found, or none does.
void Runtime::before_replay(int64_t version, bool takes_tokens) {
  check_resting("StepGraph::replay");
  check_between_steps("StepGraph::replay");
  const auto now = frozen_now();
  for (size_t i = 0; i < now.size(); ++i) {
    TORCH_CHECK(
        now[i] == frozen_[i], "[shard.graph] parameter '", name_of_trainable(i), "' was ",
        now[i] ? "frozen" : "made trainable",
        " since the step was captured: run a step outside the graph and capture it again");
  }
  TORCH_CHECK(
      version == update_version_, "[shard.graph] parameters of '", root().name(),
      "' were frozen, made trainable or loaded since the step was captured: capture it again");
  TORCH_CHECK(
      !takes_tokens || std::exchange(tokens_given_, false), "[shard.graph] the loss of '",
      root().name(),
      "' is per token: say before each replay how many this rank has, with "
      "optimizer.set_tokens(…)");
  agreement_->check(/*block=*/true);
  report_due_ = agreement_->take_findings_flag() || report_due_;
  if (std::exchange(report_due_, false)) report();
}

void Runtime::after_replay() {
  // What is kept gathered, or was refreshed, is older than the weights now.
  for (auto* unit : units_) {
    if (unit->gathered) unit->hide();
  }
  changed_ = true;
  units_stay_gathered_ = false;
  streams_->signal(published());
  ++step_;
  ++weight_version_;
  const bool news = watch_.has_findings();
  watch_.copy_to_host();
  agreement_->start(
      {Agreement::Kind::pass, step_, static_cast<int64_t>(program_->fingerprint()), 0, news},
      [step = step_] { return c10::str("replays the graph of step ", step); });
}

}  // namespace sherd
