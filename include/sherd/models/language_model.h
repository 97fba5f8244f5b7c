// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/checkpoint/checkpoint.h"
#include "sherd/export.h"
#include "sherd/shard/initialise.h"

namespace sherd {

/// What is computed again in the backward instead of kept.
enum class Recompute : uint8_t {
  none,
  full,       ///< each layer
  selective,  ///< of each layer what is large and cheap: the inside of the feed-forward
};

/// What a model is given at once: B sequences of S tokens.
struct Batch {
  at::Tensor tokens;   ///< [B, S], int64
  at::Tensor targets;  ///< [B, S], int64; one below 0 counts for nothing
  // Of a model that sees. A batch without an image has none of these.
  at::Tensor images{};         ///< [images, 3, height, width], fp32
  at::Tensor image_places{};   ///< where a patch stands for a token: b · S + s, int64
  at::Tensor image_patches{};  ///< which patch stands there: image · patches + patch, int64
};

/// A model of tokens, as a trainer sees it. It knows nothing of sharding but where its units are.
class SHERD_API LanguageModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  /// The loss summed over all targets, in fp32. What a model adds to it for its own sake, such as
  /// the balance of experts, is in the gradients but not in the value.
  virtual at::Tensor forward(const Batch& batch) = 0;
  /// [B, S, vocab], in the compute dtype.
  virtual at::Tensor logits(const Batch& batch) = 0;
  /// The modules to shard, inner ones first; the model itself, which comes last, is not among them.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> units() const = 0;
  /// What a parameter is given before training; nothing: what its module gives it.
  virtual std::optional<InitialValues> initial_values(
      const std::string& name, at::IntArrayRef shape) const = 0;
  /// As what a parameter is saved; by default as a tensor of its name.
  virtual std::vector<TensorSlice> slices_of(const std::string& name, at::IntArrayRef shape) const {
    return {{name, shape.vec(), {}}};
  }
  /// The config.json of a checkpoint, if others know such models.
  virtual std::optional<std::string> config() const { return std::nullopt; }
  /// Floating-point operations for one token of a sequence, forward and backward.
  virtual double flops_per_token(int64_t seq) const = 0;
};

}  // namespace sherd
