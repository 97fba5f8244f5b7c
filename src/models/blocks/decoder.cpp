// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim, V vocab.
#include "models/blocks/decoder.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "models/blocks/feed_forward.h"
#include "sherd/nn/recompute.h"

namespace sherd {

TokenEmbeddingImpl::TokenEmbeddingImpl(int64_t vocab, int64_t dim) {
  weight = register_parameter("weight", at::empty({vocab, dim}));
}

at::Tensor TokenEmbeddingImpl::forward(const at::Tensor& tokens_BS) {
  return at::embedding(weight, tokens_BS);
}

HeadImpl::HeadImpl(const LlamaOptions& options) {
  norm = register_module("norm", RmsNorm(options.dim, options.norm_eps));
  linear = register_module("linear", plain_linear(options.dim, options.vocab));
}

at::Tensor HeadImpl::forward(const at::Tensor& x_BSD) {
  return linear(norm(x_BSD));
}

Decoder::Decoder(
    const char* name,
    const LlamaOptions& options,
    const std::vector<std::shared_ptr<Layer>>& layers)
    : LanguageModel(name), options_(options) {
  embedding_ = register_module("embedding", TokenEmbedding(options.vocab, options.dim));
  for (const auto& layer : layers) {
    layers_.push_back(register_module("layer" + std::to_string(layers_.size()), layer));
  }
  if (options.tie_embeddings) {
    norm_ = register_module("norm", RmsNorm(options.dim, options.norm_eps));
  } else {
    head_ = register_module("head", Head(options));
  }
}

at::Tensor Decoder::embedded(const Batch& batch) {
  return embedding_(batch.tokens);
}

Decoder::Result Decoder::run(const Batch& batch) {
  auto x_BSD = embedded(batch);
  Result result;
  for (const auto& layer : layers_) {
    const auto through = [layer](const at::Tensor& x) { return call(*layer, x); };
    auto outputs =
        options_.recompute == Recompute::full ? recompute(through, x_BSD) : through(x_BSD);
    x_BSD = std::move(outputs[0]);
    if (outputs.size() == 1) continue;
    result.balance = result.balance.defined() ? result.balance + outputs[1] : outputs[1];
  }
  result.logits_BSV =
      options_.tie_embeddings ? sherd::linear(norm_(x_BSD), embedding_->weight) : head_(x_BSD);
  return result;
}

at::Tensor Decoder::forward(const Batch& batch) {
  const auto [logits_BSV, balance] = run(batch);
  const auto loss = at::cross_entropy_loss(
      logits_BSV.flatten(0, 1).to(at::kFloat), batch.targets.flatten(), {}, at::Reduction::Sum,
      /*ignore_index=*/-100);
  return balance.defined() ? loss + (balance - balance.detach()) : loss;
}

at::Tensor Decoder::logits(const Batch& batch) {
  return run(batch).logits_BSV;
}

std::vector<std::shared_ptr<torch::nn::Module>> Decoder::units() const {
  std::vector<std::shared_ptr<torch::nn::Module>> result;
  if (!options_.tie_embeddings) result.push_back(embedding_.ptr());
  for (const auto& layer : layers_) result.push_back(layer);
  if (!options_.tie_embeddings) result.push_back(head_.ptr());
  return result;
}

std::optional<InitialValues> Decoder::initial_values(
    const std::string& name, at::IntArrayRef shape) const {
  if (name.ends_with("norm.weight")) return InitialValues::constant(1);
  TORCH_INTERNAL_ASSERT(shape.size() >= 2, name, " has no initial values");
  return InitialValues::normal(0, options_.init_std);
}

double Decoder::flops_per_token(int64_t seq) const {
  double forward = product_flops(options_.dim, options_.vocab);
  for (const auto& layer : layers_) forward += layer->flops_per_token(seq);
  return 3 * forward;
}

}  // namespace sherd
