// SPDX-License-Identifier: Apache-2.0
#include "shard/models.h"

#include <torch/nn/functional/loss.h>

namespace sherd::testing {
namespace {

constexpr int64_t kVocabulary = 23;
constexpr int64_t kDim = 12;
constexpr int64_t kSequence = 6;

template <class Function>
at::Tensor maybe_recompute(bool wanted, Function function, const at::Tensor& x) {
  return wanted ? recompute(function, x) : function(x);
}

}  // namespace

PerceptronBlockImpl::PerceptronBlockImpl(int64_t dim, ModelOptions given) : options(given) {
  up = register_module("up", torch::nn::Linear(dim, 2 * dim + 1));
  down = register_module("down", sherd::Linear(2 * dim + 1, dim));
}

at::Tensor PerceptronBlockImpl::forward(const at::Tensor& x) {
  return maybe_recompute(
      options.recompute, [this](const at::Tensor& y) { return y + down(torch::tanh(up(y))); }, x);
}

PerceptronImpl::PerceptronImpl(ModelOptions options, int64_t count, int64_t dim) {
  in = register_module("in", torch::nn::Linear(7, dim));
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back(register_module("block" + std::to_string(i), PerceptronBlock(dim, options)));
  }
  out = register_module("out", torch::nn::Linear(dim, 3));
}

at::Tensor PerceptronImpl::forward(const at::Tensor& x, const at::Tensor& target) {
  auto hidden = torch::tanh(in(x));
  for (auto& block : blocks) hidden = block(hidden);
  return torch::mse_loss(out(hidden), target);
}

TransformerBlockImpl::TransformerBlockImpl(int64_t dim, int64_t count, ModelOptions given)
    : options(given), heads(count) {
  norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
  norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
  // Without bias: that of the keys has no effect, and AdamW would blow up its rounding errors.
  qkv =
      register_module("qkv", torch::nn::Linear(torch::nn::LinearOptions(dim, 3 * dim).bias(false)));
  project = register_module("project", torch::nn::Linear(dim, dim));
  up = register_module("up", torch::nn::Linear(dim, 2 * dim));
  down = register_module("down", torch::nn::Linear(2 * dim, dim));
}

at::Tensor TransformerBlockImpl::body(const at::Tensor& x) {
  const auto batch = x.size(0);
  const auto length = x.size(1);
  const auto dim = x.size(2);
  const auto packed = qkv(norm1(x)).view({batch, length, 3, heads, dim / heads});
  const auto split = packed.permute({2, 0, 3, 1, 4});
  const auto scores = torch::matmul(split[0], split[1].transpose(-2, -1)) * 0.5;
  const auto mask = torch::full({length, length}, -1e9, x.options()).triu(1);
  const auto mixed = torch::matmul(torch::softmax(scores + mask, -1), split[2]);
  const auto hidden = x + project(mixed.transpose(1, 2).reshape({batch, length, dim}));
  return hidden + down(torch::gelu(up(norm2(hidden))));
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x) {
  return maybe_recompute(
      options.recompute, [this](const at::Tensor& y) { return body(y); }, x);
}

TransformerImpl::TransformerImpl(ModelOptions options, int64_t layers) {
  embedding = register_module("embedding", torch::nn::Embedding(kVocabulary, kDim));
  positions = register_parameter("positions", torch::randn({kSequence, kDim}) * 0.1);
  for (int64_t i = 0; i < layers; ++i) {
    blocks.push_back(
        register_module("block" + std::to_string(i), TransformerBlock(kDim, 2, options)));
  }
  norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
}

at::Tensor TransformerImpl::forward(const at::Tensor& tokens, const at::Tensor& targets) {
  auto hidden = embedding(tokens) + positions.narrow(0, 0, tokens.size(1));
  for (auto& block : blocks) hidden = block(hidden);
  const auto logits = torch::matmul(norm(hidden), embedding->weight.t());
  return torch::nn::functional::cross_entropy(
      logits.view({-1, kVocabulary}), targets.reshape({-1}));
}

TortureBlockImpl::TortureBlockImpl(int64_t dim, int64_t count, ModelOptions given)
    : options(given) {
  base = register_parameter("base", torch::randn({dim, dim}) * 0.3, /*requires_grad=*/false);
  lora_a = register_parameter("lora_a", torch::randn({2, dim}) * 0.3);
  lora_b = register_parameter("lora_b", torch::randn({dim, 2}) * 0.3);
  scalar = register_parameter("scalar", torch::tensor(0.7));
  uneven = register_parameter("uneven", torch::randn({dim + 3}) * 0.1);
  tiny = register_parameter("tiny", torch::randn({2}));
  none = register_parameter("none", torch::randn({0, 4}));
  wide = register_parameter("wide", torch::randn({dim}, torch::kDouble) * 0.2);
  again = register_parameter("again", lora_a);
  unused = register_parameter("unused", torch::randn({5}));
  for (int64_t i = 0; i < count; ++i) {
    experts.push_back(
        register_parameter("expert" + std::to_string(i), torch::randn({dim, dim}) * 0.2));
  }
}

at::Tensor TortureBlockImpl::body(const at::Tensor& x) {
  auto hidden = torch::matmul(x, base) + torch::matmul(torch::matmul(x, lora_a.t()), lora_b.t());
  hidden = hidden * scalar + uneven.narrow(0, 1, x.size(-1)) + tiny.sum() + none.sum();
  hidden = hidden + torch::matmul(torch::matmul(x, again.t()), again) * 0.1;
  hidden = (hidden.to(torch::kDouble) + wide).to(x.scalar_type());
  return x + torch::tanh(hidden + torch::matmul(x, experts[static_cast<size_t>(expert_in_use)]));
}

at::Tensor TortureBlockImpl::forward(const at::Tensor& x) {
  return maybe_recompute(
      options.recompute, [this](const at::Tensor& y) { return body(y); }, x);
}

TortureImpl::TortureImpl(ModelOptions options, int64_t experts) {
  in = register_module("in", torch::nn::Linear(7, 9));
  for (int64_t i = 0; i < 2; ++i) {
    blocks.push_back(
        register_module("block" + std::to_string(i), TortureBlock(9, experts, options)));
  }
  frozen = register_parameter("frozen", torch::randn({9, 3}), /*requires_grad=*/false);
}

void TortureImpl::use_expert(int64_t expert) {
  for (auto& block : blocks) block->expert_in_use = expert;
}

at::Tensor TortureImpl::forward(const at::Tensor& x, const at::Tensor& target) {
  auto hidden = in(x);
  for (auto& block : blocks) hidden = block(hidden);
  return torch::mse_loss(torch::matmul(hidden, frozen), target);
}

}  // namespace sherd::testing
