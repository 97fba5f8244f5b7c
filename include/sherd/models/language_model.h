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
#include "sherd/shard/options.h"

namespace sherd {

/// The activations that are recomputed in the backward instead of kept (activation checkpointing).
enum class Recompute : uint8_t {
  none,       ///< nothing; the head keeps the gradients of the logits (2·V bytes a token in bf16)
  full,       ///< whole layers, and the logits of the head
  selective,  ///< what is large for what it costs: gate and up of feed-forwards and experts, the
              ///< convolution of Mamba-2; the head is as in none
};

/// The input of a model: B sequences of S tokens, or this rank's part of each (see
/// LanguageModel::part_of).
struct Batch {
  at::Tensor tokens;   ///< [B, S], int64
  at::Tensor targets;  ///< [B, S], int64; negative ones are ignored
  /// The documents that sequences consist of, which neither attention nor positions cross: the
  /// positions b · S + s where one begins, in order and with the first position of every sequence,
  /// and then B · S; int64, on the CPU. S counts whole sequences where ranks have parts of them.
  /// Undefined: each sequence is one document.
  at::Tensor documents{};
  // For vision-language models; undefined if the batch has no image.
  at::Tensor images{};         ///< [images, 3, height, width], fp32
  at::Tensor image_places{};   ///< positions that patches replace, b · S + s, int64
  at::Tensor image_patches{};  ///< patch for each such position, image · patches + patch, int64
};

/// The keys and values of the positions that a model has seen. With them, generation computes new
/// positions only.
struct KeyValueCache {
  struct Layer {
    at::Tensor keys;    ///< [B, kv_heads, capacity, head_dim], with rotary embeddings
    at::Tensor values;  ///< as the keys
  };
  int64_t capacity = 0;         ///< the most positions that it can have
  int64_t length = 0;           ///< the positions that it has; the next batch's follow them
  std::vector<Layer> layers{};  ///< allocated by the model
};

/// The floating-point operations of one of a model's units.
struct UnitOperations {
  std::string unit;      ///< name of the module, as in named_modules(); empty: the model itself
  double forward = 0;    ///< operations of its forward for each of this rank's tokens
  double selective = 0;  ///< those of them that Recompute::selective repeats in the backward
  /// Index of the unit's layer, if its activations may be recomputed. They are if
  /// LlamaOptions::recompute is not none and recompute_layers is 0 or above this index.
  std::optional<int64_t> layer{};
};

/// The interface of language models that the trainer uses. A model knows nothing about sharding
/// except which modules are units.
class SHERD_API LanguageModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  /// Returns the loss summed over all targets, in fp32. Auxiliary losses, such as the balance of
  /// experts, are in its gradients but not in its value.
  virtual at::Tensor forward(const Batch& batch) = 0;
  /// Returns the logits, [B, S, vocab], in the compute dtype.
  virtual at::Tensor logits(const Batch& batch) = 0;
  /// Returns the logits of each sequence's last position, [B, vocab]. With a cache, the batch
  /// continues the sequences in it and is added to it; that needs caches() and no GradMode. By
  /// default the last ones of logits().
  virtual at::Tensor next_logits(const Batch& batch, KeyValueCache* cache = nullptr);
  /// Returns whether next_logits() can use a cache.
  virtual bool caches() const { return false; }
  /// Returns this rank's part of a batch of whole sequences that all ranks which share them are
  /// given (tensor and context parallelism): the input of forward() and logits() on this rank. Its
  /// loss is the sum over its own targets. By default the batch itself.
  virtual Batch part_of(const Batch& whole) const { return whole; }
  /// Returns the modules to shard, inner ones first. The model itself, to be sharded last, is not
  /// among them.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> units() const = 0;
  /// Returns the distribution of a parameter's initial values, or nothing if its module's
  /// reset_parameters() sets them.
  virtual std::optional<InitialValues> initial_values(
      const std::string& name, at::IntArrayRef shape) const = 0;
  /// Returns the slices of tensors that a parameter is stored as in checkpoints; by default one
  /// tensor of its name.
  virtual std::vector<TensorSlice> slices_of(const std::string& name, at::IntArrayRef shape) const {
    return {{name, shape.vec(), {}}};
  }
  /// Returns rules for the parameters of which this rank has a part: their mesh, axes and cut. Give
  /// them to every unit (UnitOptions::rules). By default none.
  virtual std::vector<ParameterRule> rules() const { return {}; }
  /// Returns whether ranks exchange activations within a pass. Then every rank must make every
  /// pass: one without data takes targets that are all negative, and not idle_pass().
  virtual bool exchanges() const { return !rules().empty(); }
  /// Returns patterns of the parameters (ParameterRule::match) whose products may be in fp8: those
  /// that the model multiplies with Sherd's own operations. By default none.
  virtual std::vector<std::string> products() const { return {}; }
  /// Returns the config.json for checkpoints, if Hugging Face knows such models.
  virtual std::optional<std::string> config() const { return std::nullopt; }
  /// Returns the floating-point operations of each unit for whole sequences of `seq` tokens; units
  /// that it leaves out have none. A model that sees images counts as many as such a sequence can
  /// hold.
  virtual std::vector<UnitOperations> operations(int64_t seq) const = 0;
  /// Returns the floating-point operations of all units for one token of a sequence, forward and
  /// backward, without recomputation: three times those of the forwards.
  double flops_per_token(int64_t seq) const;
};

}  // namespace sherd
