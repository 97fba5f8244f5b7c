// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

#include "sherd/nn/linear.h"
#include "sherd/nn/recompute.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

// Small models, each with units of SHERD_MODULE. Unsharded they are plain torch.
namespace sherd::testing {

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

/// What the tests vary inside a model.
struct ModelOptions {
  bool recompute = false;  ///< inside each block
};

// ---- a perceptron -------------------------------------------------------------------------------

struct PerceptronBlockImpl : torch::nn::Module {
  PerceptronBlockImpl(int64_t dim, ModelOptions options);
  at::Tensor forward(const at::Tensor& x);
  ModelOptions options;
  torch::nn::Linear up{nullptr};
  sherd::Linear down{nullptr};  // writes its weight gradient itself
};
SHERD_MODULE(PerceptronBlock);

struct PerceptronImpl : torch::nn::Module {
  explicit PerceptronImpl(ModelOptions options = {}, int64_t blocks = 3, int64_t dim = 10);
  /// The mean squared error.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& target);
  torch::nn::Linear in{nullptr};
  std::vector<PerceptronBlock> blocks;
  torch::nn::Linear out{nullptr};
};
SHERD_MODULE(Perceptron);

// ---- a small transformer with tied embeddings ---------------------------------------------------

struct TransformerBlockImpl : torch::nn::Module {
  TransformerBlockImpl(int64_t dim, int64_t heads, ModelOptions options);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor body(const at::Tensor& x);
  ModelOptions options;
  int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, project{nullptr}, up{nullptr}, down{nullptr};
};
SHERD_MODULE(TransformerBlock);

struct TransformerImpl : torch::nn::Module {
  explicit TransformerImpl(ModelOptions options = {}, int64_t layers = 2);
  /// The mean cross entropy of the next token.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets);
  torch::nn::Embedding embedding{nullptr};
  at::Tensor positions;
  std::vector<TransformerBlock> blocks;
  torch::nn::LayerNorm norm{nullptr};
};
SHERD_MODULE(Transformer);

// ---- everything at once -------------------------------------------------------------------------

/// Frozen base, low-rank update, a scalar, an uneven vector, fewer elements than ranks, none at
/// all, another dtype, one tensor under two names, and an expert.
struct TortureBlockImpl : torch::nn::Module {
  TortureBlockImpl(int64_t dim, int64_t experts, ModelOptions options);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor body(const at::Tensor& x);
  ModelOptions options;
  int64_t expert_in_use = 0;
  at::Tensor base, lora_a, lora_b, scalar, uneven, tiny, none, wide, again, unused;
  std::vector<at::Tensor> experts;
};
SHERD_MODULE(TortureBlock);

struct TortureImpl : torch::nn::Module {
  explicit TortureImpl(ModelOptions options = {}, int64_t experts = 1);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& target);
  void use_expert(int64_t expert);
  torch::nn::Linear in{nullptr};
  std::vector<TortureBlock> blocks;
  at::Tensor frozen;
};
SHERD_MODULE(Torture);

}  // namespace sherd::testing
