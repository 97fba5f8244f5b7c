// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/shard/initialise.h"

namespace sherd {

/// What is computed again in the backward instead of kept.
enum class Recompute : uint8_t {
  none,
  full,       ///< each layer
  selective,  ///< of each layer what is large and cheap: the inside of the feed-forward
};

/// A model of tokens, as a trainer sees it. It knows nothing of sharding but where its units are.
class SHERD_API LanguageModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  /// The loss summed over all targets, in fp32: tokens and targets are [batch, seq], int64; a
  /// target below 0 counts for nothing.
  virtual at::Tensor forward(at::Tensor tokens, at::Tensor targets) = 0;
  /// [batch, seq, vocab], in the compute dtype.
  virtual at::Tensor logits(at::Tensor tokens) = 0;
  /// The modules to shard, inner ones first; the model itself, which comes last, is not among them.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> units() const = 0;
  /// What a parameter is given before training.
  virtual std::optional<InitialValues> initial_values(
      const std::string& name, at::IntArrayRef shape) const = 0;
  /// Floating-point operations for one token of a sequence, forward and backward.
  virtual double flops_per_token(int64_t seq) const = 0;
};

}  // namespace sherd
