// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "sherd/export.h"

namespace torch::nn {
class Module;
}

namespace sherd {

/// A whole step (all micro-batches, reductions, clipping, update) as one CUDA graph: replaying it
/// costs the host one call. What the step reads must lie where it lay when it was captured (copy
/// new tokens there), and so does what it leaves (the loss). The optimizer's rate may change
/// between replays; where the loss is per token, AdamW::set_tokens says before each replay how many
/// tokens this rank has. Random numbers differ from replay to replay as they do from step to step.
///
/// Run some steps first, on `stream()`. Afterwards units keep their addresses: another order of
/// them is an error, and so is a replay after a parameter was frozen or made trainable. Steps
/// outside the graph may come between replays.
class SHERD_API StepGraph {
 public:
  /// Throws, naming the reason, where a step of the model can't be captured: no GPU, or memory that
  /// is eager.
  explicit StepGraph(const torch::nn::Module& model);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// Runs `function` with the stream that captures as the current one, behind all that the current
  /// one holds; and the current one behind it.
  void on_stream(const std::function<void()>& function) const;
  /// Records what `step` enqueues; nothing of it is executed. It must not wait for the device.
  void capture(const std::function<void()>& step);
  bool is_captured() const;
  /// Enqueues the step. Throws what an earlier one found wrong with its gradients.
  void replay();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd
