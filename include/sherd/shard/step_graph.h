// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "sherd/export.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

/// A whole training step (all micro-batches, reductions, clipping, update) as one CUDA graph, which
/// the host replays with one call. The captured step reads its inputs from, and leaves its results
/// in, the tensors that it used in the capture: copy new inputs into them and read the loss from
/// them. The learning rate may change between replays. With Loss::per_token, call AdamW::set_tokens
/// before each replay. Random numbers differ from replay to replay as they do from step to step.
///
/// Run two steps with on_stream() before the capture. After it the units' addresses are fixed:
/// another order of calls or number of micro-batches throws, and so does a replay after a parameter
/// was frozen or made trainable. Steps outside the graph may come between replays.
class SHERD_API StepGraph {
 public:
  /// Prepares a graph for a model, which is a root. Throws if its steps can't be captured: without
  /// a GPU, in a build without CUDA, or with MemoryKind::eager.
  explicit StepGraph(ModuleRef model);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// Runs `function` with the capture stream as the current stream. That stream first waits for the
  /// caller's current stream, which afterwards waits for it; the host does not wait.
  void on_stream(const std::function<void()>& function) const;
  /// Captures the work that `step` enqueues, without running it. `step` must make one whole step
  /// and must not wait for the device. Collective; blocks until earlier work is done. Throws in the
  /// middle of a step, before a step has run with the final program (two usually suffice), and if
  /// parameters were frozen or made trainable since the last step.
  void capture(const std::function<void()>& step);
  /// Returns whether a step was captured.
  bool is_captured() const;
  /// Enqueues the captured step, ordered with the current stream as in on_stream(). Collective;
  /// blocks only until all ranks have enqueued the previous replay. Throws if nothing was captured,
  /// and if AdamW::set_tokens was not called with Loss::per_token. Throws
  /// NotFiniteError if an earlier replay had gradients that are not finite, and throws if
  /// parameters were frozen or made trainable since the capture.
  void replay();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd
