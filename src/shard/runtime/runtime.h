// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shard/runtime/backward.h"
#include "shard/runtime/failure.h"
#include "shard/runtime/forward.h"
#include "shard/runtime/runtime_parts.h"
#include "sherd/shard/boundary.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

/// The units of one model at work: their boundaries, and the points of a step.
///
/// Units hold it; it holds none of them. One thread at a time: the caller's in the forward,
/// autograd's in the backward.
class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  /// The runtime of a unit. The first call makes one, with the unit as root of all units inside
  /// its module: collective.
  static std::shared_ptr<Runtime> of(Unit& unit);
  /// The same for a module that must be a root: the caller's mistake otherwise.
  static std::shared_ptr<Runtime> of_model(const torch::nn::Module& model, const char* caller);

  // ---- the boundaries of units: see sherd/shard/boundary.h ----------------------------------
  UnitCall before_forward(Unit& unit);
  void after_forward(UnitCall& call, std::span<const at::Tensor> outputs);
  void before_backward(const UnitCall& call);
  void after_backward(const UnitCall& call);
  /// Ends the pass that is under way after an exception.
  void abandon() noexcept;
  void idle_pass();

  // ---- the step ----------------------------------------------------------------------------
  void set_micro_batches(int64_t count);
  /// The same in the middle of a step, before its last backward; `count` is new.
  void change_micro_batches(int64_t count);
  /// Builds and uses a program for changed options of units or of the step.
  void rebuild();
  /// Begins the step again.
  void drop_gradients();
  /// Throws unless all backwards of the step are done on this rank. CPU, several ranks: compares
  /// that with the other ranks, too (collective; blocks).
  void check_complete(const char* caller);
  void divide_by_tokens(double tokens);
  /// Copies main weights to model weights, and begins the next step. `by_optimizer`: the model
  /// weights are written already.
  void publish(bool by_optimizer = false);
  /// Main weights were loaded: publishes them, which is no step.
  void publish_loaded();
  /// Main and model weights were written alike.
  void note_edit();
  /// Warns if the first step's gradients were not used by the optimizer.
  void warn_if_unchanged() const;

  // ---- between passes ----------------------------------------------------------------------
  /// Waits for what is under way, unless a pass has failed: that may never end.
  void finish();
  /// Waits until nothing is under way, between passes. Collective after an exception.
  void wait_until_idle(const char* caller);
  /// Throws, naming the unit, if something is gathered or under way.
  void check_between_passes(const char* caller);
  /// Throws in the middle of a step.
  void check_between_steps(const char* caller) const;
  /// Waits until a backward that failed is over: its caller may be told before autograd's thread
  /// has let go of it.
  void notice_failure() noexcept;
  /// Forgets a unit that is being deleted.
  void drop(const Unit& unit) noexcept;

  // ---- parts -------------------------------------------------------------------------------
  RuntimeParts& parts() { return parts_; }
  const World& world() const { return parts_.world; }
  const ModelUnits& units() const { return parts_.units; }
  const std::vector<ParameterShard>& shards() const { return parts_.shards; }
  Unit& root() const { return parts_.units.root(); }
  const StepState& state() const { return parts_.state; }
  const Program& program() const { return *parts_.program; }
  ProgramStreams& streams() const { return parts_.program.streams(); }
  bool takes_all_gradients() const { return backward_.takes_all_gradients(); }
  ModelBytes bytes() const;

 private:
  explicit Runtime(Unit& root) : parts_(root), forward_(parts_), backward_(parts_) {}
  UnitCall recompute(Unit& unit);
  void hook_outputs(const UnitCall& call, std::span<const at::Tensor> outputs);
  void ensure_backward(const UnitCall& call);
  void queue_backward_end();
  void finish_backward();
  void complete_step();
  void attach_gradients();

  RuntimeParts parts_;
  Forward forward_;
  Backward backward_;
  std::shared_ptr<BackwardEnd> backward_end_;  // of the last one
  std::optional<size_t> update_entry_;         // of the recorder, while the optimizer is at work
};

}  // namespace sherd
