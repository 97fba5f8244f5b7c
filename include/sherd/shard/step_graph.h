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
/// Run two steps with on_stream() before the capture. After it the program is fixed for the rest of
/// the model's life, even after the graph is destroyed: another order of calls or number of
/// micro-batches throws, and so does a replay after a parameter was frozen or made trainable. Steps
/// outside the graph may come between replays. The graph has device memory of its own for
/// activations. Keep model, optimizer and the tensors of the step alive while it is replayed.
class SHERD_API StepGraph {
 public:
  /// Prepares a graph for a model, which is a root: takes a stream, captures nothing yet. Throws if
  /// its steps can't be captured: without a GPU, in a build without CUDA, or with
  /// MemoryKind::eager.
  explicit StepGraph(ModuleRef model);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  /// Runs `function` with the capture stream as the current stream. That stream first waits for the
  /// caller's current stream, which afterwards waits for it; the host does not wait.
  void on_stream(const std::function<void()>& function) const;
  /// Captures the work that `step` enqueues, without running it: weights, losses and counters do
  /// not change. `step` must make one whole step (all micro-batches and the update) and must not
  /// wait for the device. A later capture replaces an earlier one. Call it on all ranks; blocks
  /// until the model's communication on this rank is done, and returns the memory that torch's
  /// allocator caches to the device.
  ///
  /// Throws before it captures anything during a pass, in the middle of a step, before a step has
  /// run with the final program (two usually suffice), and if parameters were frozen or made
  /// trainable since the last step. Passes on what `step` throws; nothing is captured then, and an
  /// earlier graph stays.
  void capture(const std::function<void()>& step);
  /// Returns whether a step was captured.
  bool is_captured() const;
  /// Enqueues the captured step, ordered with the current stream as in on_stream(): work that is
  /// enqueued there afterwards sees its results. Collective; blocks only until all ranks have
  /// enqueued the previous replay. Throws if nothing was captured, during a pass, in the middle of
  /// a step, if parameters were frozen or made trainable since the capture or AdamW::set_progress
  /// has changed the updates that they missed, and with Loss::per_token if AdamW::set_tokens was
  /// not called since the last call of replay(). Throws NotFiniteError, on all ranks, if an earlier
  /// replay had gradients that are not finite. After an error nothing was enqueued.
  void replay();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd
