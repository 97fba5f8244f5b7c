// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shard/parameter_shards.h"
#include "sherd/shard/options.h"

namespace torch::nn {
class Module;
}

namespace sherd {

class Runtime;

/// Returns whether a parameter is left alone by fully_shard (UnitOptions::ignored).
bool is_ignored(const at::Tensor& parameter);

/// A sharded model as optimizers and checkpoints see it: its parameters' shards and the state of
/// its step. A handle that keeps the runtime alive, but not the module; see weak().
class ShardedModel {
 public:
  /// Throws, naming `caller`, unless `model` is a root. Collective if it is the first use of the
  /// root.
  ShardedModel(const torch::nn::Module& model, const char* caller);
  explicit ShardedModel(std::shared_ptr<Runtime> runtime) : runtime_(std::move(runtime)) {}
  /// Returns a reference that does not keep the runtime alive; lock it to make a handle again.
  std::weak_ptr<Runtime> weak() const { return runtime_; }
  friend bool operator==(const ShardedModel&, const ShardedModel&) = default;

  const World& world() const;
  const std::string& name() const;  ///< name of the root unit
  Loss loss() const;
  const std::vector<ParameterShard>& shards() const;
  /// Returns the texts of the first `most` ranks whose text is not empty. Blocks. Collective.
  std::vector<std::string> exchange_text(const std::string& text, size_t most) const;

  // ---- the state of the step; the checks throw, naming `caller` ----------------------------

  /// Throws in the middle of a step.
  void check_between_steps(const char* caller) const;
  /// Throws unless all backwards of the step are done on this rank. CPU, several ranks: compares
  /// that with the other ranks, too (collective; blocks).
  void check_complete(const char* caller) const;
  /// Throws, naming it, if a parameter has no values.
  void check_initialised() const;
  /// Blocks until nothing is under way. Throws within a pass. Collective after an exception.
  void wait_until_idle(const char* caller) const;
  /// Returns the number of steps that were published.
  int64_t steps() const;
  /// Returns for each trainable shard whether it was frozen when the last backward began.
  const std::vector<bool>& frozen() const;
  /// Returns whether the current step is being captured as a graph.
  bool capturing() const;

  // ---- updates -----------------------------------------------------------------------------

  /// Ends the step: the optimizer has written main and model weights.
  void publish_update() const;
  /// Copies main weights that were loaded to the model weights; does not end a step.
  void publish_loaded() const;
  /// Declares that gradients may overflow: the optimizer scales the loss.
  void expect_overflow(bool expected) const;
  /// Warns of what the gradient watch has found, or throws and adds `consequence`. Blocks.
  /// Collective.
  void report_findings(const char* consequence) const;
  /// Declares that the optimizer's tables have changed: captured graphs are outdated.
  void note_new_update() const;
  /// Declares that the step being captured reads its number of tokens from the device.
  void note_tokens_captured() const;
  /// Declares that the number of tokens for the next replay was written.
  void note_tokens_given() const;

 private:
  std::shared_ptr<Runtime> runtime_;
};

}  // namespace sherd
