// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim, V vocab.
#include "models/blocks/decoder.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "models/blocks/feed_forward.h"
#include "models/blocks/layer_name.h"
#include "sherd/nn/functional.h"
#include "sherd/nn/recompute.h"

namespace sherd {

double LanguageModel::flops_per_token(int64_t seq) const {
  double forward = 0;
  for (const auto& unit : operations(seq)) forward += unit.forward;
  return 3 * forward;
}

at::Tensor LanguageModel::next_logits(const Batch& batch, KeyValueCache* cache) {
  TORCH_CHECK_VALUE(
      !cache, "[models] ", name(), " has no cache of keys and values: give all tokens of the ",
      "sequence, and no cache");
  return logits(batch).select(1, -1);
}

TokenEmbeddingImpl::TokenEmbeddingImpl(int64_t vocab, int64_t dim) {
  weight = register_parameter("weight", at::empty({vocab, dim}));
}

at::Tensor TokenEmbeddingImpl::forward(const at::Tensor& tokens_BS) {
  return sherd::embedding(weight, tokens_BS);
}

namespace {

/// Recomputing layers means that memory is short: then logits are recomputed, too.
HeadOptions head_of(const LlamaOptions& options) {
  HeadOptions result;
  result.logits = options.recompute == Recompute::full ? HeadLogits::recompute : HeadLogits::keep;
  return result;
}

at::Tensor loss_of(
    const at::Tensor& x_BSD,
    const at::Tensor& weight,
    const at::Tensor& targets_BS,
    const HeadOptions& options) {
  return linear_cross_entropy(x_BSD.flatten(0, 1), weight, targets_BS.flatten(), options);
}

/// Of [E, 2F, D]: each expert's rows of the tensors gate and up, [E, F, D] each.
std::vector<TensorSlice> expert_slices(const std::string& stem, at::IntArrayRef shape) {
  const int64_t width = shape[1] / 2;
  std::vector<TensorSlice> slices;
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    for (const char* part : {"gate", "up"}) {
      slices.push_back(
          {stem + part,
           {shape[0], width, shape[2]},
           {{expert, expert + 1}, {0, width}, {0, shape[2]}}});
    }
  }
  return slices;
}

}  // namespace

HeadImpl::HeadImpl(const LlamaOptions& options) : options_(head_of(options)) {
  norm = register_module("norm", RmsNorm(options.dim, options.norm_eps));
  linear = register_module("linear", plain_linear(options.dim, options.vocab));
}

at::Tensor HeadImpl::forward(const at::Tensor& x_BSD, const at::Tensor& targets_BS) {
  const auto y_BSD = norm(x_BSD);
  return targets_BS.defined() ? loss_of(y_BSD, linear->weight, targets_BS, options_)
                              : linear(y_BSD);
}

Decoder::Decoder(
    const char* name,
    const LlamaOptions& options,
    const std::vector<std::shared_ptr<Layer>>& layers)
    : LanguageModel(name), options_(options), ranks_(options.mesh) {
  embedding_ = register_module("embedding", TokenEmbedding(options.vocab, options.dim));
  for (const auto& layer : layers) {
    layers_.push_back(register_module(layer_name(layers_.size()), layer));
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

bool Decoder::caches() const {
  return ranks_.size() == 1 && std::all_of(layers_.begin(), layers_.end(), [](const auto& layer) {
           return layer->keeps_to_scope();
         });
}

void Decoder::check_length(const Batch& batch, const KeyValueCache* cache) const {
  const int64_t window = options_.sliding_window;
  const int64_t seq = batch.tokens.size(1) * ranks_.size() + (cache ? cache->length : 0);
  TORCH_CHECK_VALUE(
      window == 0 || seq <= window, "[models] sequences of ", seq, " tokens: the model has a ",
      "sliding window of ", window, ", which is not supported; use sequences of at most ", window);
  if (!cache) return;
  TORCH_CHECK_VALUE(
      caches() && !batch.documents.defined(),
      "[models] a cache of keys and values: models with Mamba-2 layers, ranks that share sequences "
      "and batches of several documents have none; give all tokens of the sequence, and no cache");
  TORCH_CHECK_VALUE(
      seq <= cache->capacity, "[models] ", seq, " positions in a cache for ", cache->capacity,
      ": make its capacity larger");
}

at::Tensor Decoder::documents_of(const Batch& batch) const {
  auto documents = checked_documents(
      batch.documents, batch.tokens.size(0), batch.tokens.size(1) * ranks_.size());
  if (!documents.defined()) return documents;
  TORCH_CHECK_VALUE(
      !ranks_.context, "[models] several documents in a sequence on ", ranks_.cp(),
      " ranks along 'cp': ranks that have chunks of a sequence do not know documents; use one rank "
      "along 'cp'");
  for (size_t i = 0; i < layers_.size(); ++i) {
    TORCH_CHECK_VALUE(
        layers_[i]->keeps_to_scope(), "[models] several documents in a sequence: layer ", i,
        " is a Mamba-2, whose state goes on from one document to the next; give it sequences of "
        "one document each");
  }
  return documents;
}

Decoder::Result Decoder::run(const Batch& batch, KeyValueCache* cache) {
  check_length(batch, cache);
  AttentionScope scope{.documents = documents_of(batch)};
  if (cache) {
    cache->layers.resize(layers_.size());
    scope.begin = cache->length;
    scope.capacity = cache->capacity;
    cache->length += batch.tokens.size(1);
  }
  auto x_BSD = embedded(batch);
  Result result;
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (cache) scope.cached = &cache->layers[i];
    const auto through = [layer = layers_[i], scope](const at::Tensor& x) {
      return call(*layer, x, scope);
    };
    const bool again = options_.recomputes(Recompute::full, static_cast<int64_t>(i));
    auto outputs = again ? recompute(through, x_BSD) : through(x_BSD);
    x_BSD = std::move(outputs[0]);
    if (outputs.size() == 1) continue;
    result.balance = result.balance.defined() ? result.balance + outputs[1] : outputs[1];
  }
  result.x_BSD = std::move(x_BSD);
  return result;
}

at::Tensor Decoder::forward(const Batch& batch) {
  const auto [x_BSD, balance] = run(batch);
  const auto loss =
      options_.tie_embeddings
          ? loss_of(norm_(x_BSD), embedding_->weight, batch.targets, head_of(options_))
          : head_(x_BSD, batch.targets);
  return balance.defined() ? loss + (balance - balance.detach()) : loss;
}

at::Tensor Decoder::logits(const Batch& batch) {
  const auto x_BSD = run(batch).x_BSD;
  return options_.tie_embeddings ? sherd::linear(norm_(x_BSD), embedding_->weight) : head_(x_BSD);
}

at::Tensor Decoder::next_logits(const Batch& batch, KeyValueCache* cache) {
  const auto x_BSD = run(batch, cache).x_BSD;
  const auto last_BD = x_BSD.select(1, x_BSD.size(1) - 1).contiguous();
  return options_.tie_embeddings ? sherd::linear(norm_(last_BD), embedding_->weight)
                                 : head_(last_BD);
}

std::vector<TensorSlice> Decoder::slices_of(const std::string& name, at::IntArrayRef shape) const {
  const auto rows = [&](const std::string& packed,
                        std::vector<std::pair<const char*, int64_t>> of) {
    const auto begin = name.rfind(packed);
    std::vector<TensorSlice> slices;
    for (const auto& [part, count] : of) {
      auto sizes = shape.vec();
      sizes[0] = count;
      slices.push_back({name.substr(0, begin) + part + name.substr(begin + packed.size()), sizes});
    }
    return slices;
  };
  if (name.ends_with("qkv.weight") || name.ends_with("qkv.bias")) {
    // A tower beside the layers has as many keys as queries.
    const bool grouped = name.rfind("layer", 0) == 0;
    const int64_t width = options_.heads * options_.head_dim;
    const int64_t narrow = options_.kv_heads * options_.head_dim;
    const int64_t query = grouped ? width : shape[0] / 3;
    const int64_t key = grouped ? narrow : shape[0] / 3;
    return rows("qkv", {{"query", query}, {"key", key}, {"value", key}});
  }
  if (name.ends_with("gate_up.weight")) {
    return rows("gate_up", {{"gate", shape[0] / 2}, {"up", shape[0] / 2}});
  }
  if (name.ends_with(".gate_up")) return expert_slices(name.substr(0, name.size() - 7), shape);
  return LanguageModel::slices_of(name, shape);
}

std::vector<std::string> Decoder::products() const {
  return {"*.qkv.weight", "*.output.weight", "*.gate_up.weight", "*.down.weight"};
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
  if (name.ends_with("qkv.bias")) return InitialValues::constant(0);
  TORCH_INTERNAL_ASSERT(shape.size() >= 2, name, " has no initial values");
  return InitialValues::normal(0, options_.init_std);
}

std::vector<UnitOperations> Decoder::operations(int64_t seq) const {
  std::vector<UnitOperations> result;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto& layer = *layers_[i];
    result.push_back(
        {layer_name(i), layer.flops_per_token(seq), layer.selective_flops_per_token(),
         static_cast<int64_t>(i)});
  }
  // An embedding looks up and multiplies nothing; a tied one belongs to the model itself.
  result.push_back(
      {options_.tie_embeddings ? "" : "head", product_flops(options_.dim, options_.vocab)});
  return result;
}

}  // namespace sherd
