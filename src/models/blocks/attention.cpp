// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim.
#include "models/blocks/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "models/blocks/feed_forward.h"
#include "sherd/nn/functional.h"

namespace sherd {

AttentionOptions attention_of(const LlamaOptions& options) {
  return {
      .dim = options.dim,
      .heads = options.heads,
      .kv_heads = options.kv_heads,
      .head_dim = options.head_dim,
      .qkv_bias = options.qkv_bias,
      .qk_norm = options.qk_norm ? std::optional(options.norm_eps) : std::nullopt,
      .qk_norm_across = options.qk_norm_across,
      .rotary = RotaryOptions{options.head_dim, options.rope_theta, options.rope_scaling}};
}

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options) {
  if (options.rotary) rotary_.emplace(*options.rotary);
  const int64_t width = options.heads * options.head_dim;
  const int64_t narrow = options.kv_heads * options.head_dim;
  const auto packed = torch::nn::LinearOptions(options.dim, width + 2 * narrow);
  qkv = register_module("qkv", Linear(torch::nn::LinearOptions(packed).bias(options.qkv_bias)));
  if (options.qk_norm) {
    const bool across = options.qk_norm_across;
    const int64_t of_queries = across ? width : options.head_dim;
    const int64_t of_keys = across ? narrow : options.head_dim;
    query_norm = register_module("query_norm", RmsNorm(of_queries, *options.qk_norm));
    key_norm = register_module("key_norm", RmsNorm(of_keys, *options.qk_norm));
  }
  output = register_module("output", plain_linear(width, options.dim));
}

at::Tensor AttentionImpl::with_normed_heads(const at::Tensor& packed) {
  const int64_t narrow = options_.kv_heads * options_.head_dim;
  const auto parts =
      packed.split_with_sizes({options_.heads * options_.head_dim, narrow, narrow}, -1);
  const auto heads_of = [&](const at::Tensor& part) {
    return part.unflatten(-1, {-1, options_.qk_norm_across ? part.size(-1) : options_.head_dim});
  };
  const auto query = query_norm(heads_of(parts[0])).flatten(-2);
  const auto key = key_norm(heads_of(parts[1])).flatten(-2);
  return at::cat({query, key, parts[2]}, -1);
}

at::Tensor AttentionImpl::mixed(const at::Tensor& packed) {
  RotaryTables tables;
  if (rotary_) tables = rotary_->tables(packed.size(1), packed.device());
  const AttentionShape shape{options_.heads, options_.kv_heads, options_.head_dim, options_.causal};
  return output(sherd::attention(query_norm ? with_normed_heads(packed) : packed, shape, tables));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BSD) {
  return mixed(qkv(x_BSD));
}

std::tuple<at::Tensor, at::Tensor> AttentionImpl::normed(
    const at::Tensor& x_BSD, const RmsNorm& norm) {
  auto [x, packed] = norm_linear(x_BSD, {}, {norm->weight, norm->epsilon}, qkv->weight);
  if (options_.qkv_bias) packed = packed + qkv->bias.to(packed.scalar_type());
  return {x, mixed(packed)};
}

double AttentionImpl::flops_per_token(int64_t seq) const {
  const int64_t width = options_.heads * options_.head_dim;
  const double products = 2 * product_flops(options_.dim, width) +
                          2 * product_flops(options_.dim, options_.kv_heads * options_.head_dim);
  const double both = 2 * product_flops(width, seq);  // with the keys, with the values
  return products + (options_.causal ? both / 2 : both);
}

}  // namespace sherd
