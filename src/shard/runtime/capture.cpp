// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/capture.h"

#include <c10/util/Exception.h>

#include <utility>

#include "device/random_state.h"
#include "shard/diagnostics/findings.h"
#include "shard/runtime/runtime.h"

namespace sherd {

void check_capturable(Runtime& runtime) {
  runtime.check_between_passes("StepGraph::capture");
  runtime.check_between_steps("StepGraph::capture");
  const auto& parts = runtime.parts();
  const auto& name = runtime.root().name();
  TORCH_CHECK(
      parts.orders.is_known() && parts.agreement.is_program_agreed() && parts.state.step() > 0,
      "[shard.graph] a step of '", name,
      "' is captured before one was made: run two steps on the graph's stream first");
  TORCH_CHECK(
      parts.units.frozen() == parts.state.frozen, "[shard.graph] parameters of '", name,
      "' were frozen or made trainable since its last step: run one outside the graph first");
}

void begin_capture(Runtime& runtime) {
  auto& parts = runtime.parts();
  parts.graph.capturing = true;
  parts.graph.tokens_captured = false;
  parts.state.begin_capture();
  RandomState::set_capturing(parts.world.device());
  parts.program.streams().fork();
}

void end_capture(Runtime& runtime) {
  auto& parts = runtime.parts();
  parts.program.streams().rejoin();
  stop_capturing(runtime);
  parts.graph.addresses_pinned_by = "a graph of the step was captured";
  parts.state.end_capture();
}

void stop_capturing(Runtime& runtime) noexcept {
  runtime.parts().graph.capturing = false;
  RandomState::set_capturing(std::nullopt);
}

void before_replay(Runtime& runtime, int64_t update_version, bool takes_tokens) {
  runtime.check_between_passes("StepGraph::replay");
  auto& parts = runtime.parts();
  if (parts.state.has_failed()) recover(parts);
  runtime.check_between_steps("StepGraph::replay");
  const auto& name = runtime.root().name();
  const auto now = parts.units.frozen();
  size_t i = 0;
  for (const auto& shard : parts.shards) {
    if (!shard.trainable) continue;
    const bool frozen = now[i];
    TORCH_CHECK(
        frozen == parts.state.frozen[i++], "[shard.graph] parameter '", shard.name, "' was ",
        frozen ? "frozen" : "made trainable",
        " since the step was captured: run a step outside the graph and capture it again");
  }
  TORCH_CHECK(
      update_version == parts.graph.update_version, "[shard.graph] parameters of '", name,
      "' were frozen, made trainable or loaded since the step was captured: capture it again");
  TORCH_CHECK(
      !takes_tokens || std::exchange(parts.graph.tokens_given, false),
      "[shard.graph] the loss of '", name,
      "' is per token: say before each replay how many this rank has, with "
      "optimizer.set_tokens(…)");
  // What a replay finds is copied to the host after it and told with the next replay's record.
  parts.agreement.records().check(/*block=*/true);
  parts.agreement.note_findings();
  parts.encode_stale_weights();
  if (parts.agreement.is_report_due()) report_findings(parts);
}

void after_replay(Runtime& runtime) {
  auto& parts = runtime.parts();
  // Parameters that are still gathered, or were refreshed, are older than the weights now.
  for (auto* unit : parts.units) {
    if (unit->activity().is_gathered()) unit->hide();
  }
  parts.program.signal_published();
  parts.state.note_replay();
  const bool has_findings = parts.watch.has_findings();
  parts.watch.copy_to_host();
  const int64_t step = parts.state.step();
  auto record = RankRecords::Record::of_pass(
      step, static_cast<int64_t>(parts.program->fingerprint()), /*pass=*/0, /*flags=*/0);
  record.has_findings = has_findings;
  parts.agreement.records().start(
      record, [step] { return c10::str("replays the graph of step ", step); });
}

}  // namespace sherd
