// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim, H heads, K heads of keys and values, d dim of a head.
#include "models/blocks/attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include "models/blocks/feed_forward.h"

namespace sherd {

AttentionOptions attention_of(const LlamaOptions& options) {
  return {
      .dim = options.dim,
      .heads = options.heads,
      .kv_heads = options.kv_heads,
      .head_dim = options.head_dim,
      .rotary = RotaryOptions{options.head_dim, options.rope_theta, options.rope_scaling}};
}

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options_(options) {
  if (options.rotary) rotary_.emplace(*options.rotary);
  const int64_t width = options.heads * options.head_dim;
  const int64_t narrow = options.kv_heads * options.head_dim;
  query = register_module("query", plain_linear(options.dim, width));
  key = register_module("key", plain_linear(options.dim, narrow));
  value = register_module("value", plain_linear(options.dim, narrow));
  output = register_module("output", plain_linear(width, options.dim));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BSD) {
  const auto query_BHSd = turned(split(query(x_BSD)));
  const auto key_BKSd = turned(split(key(x_BSD)));
  const auto value_BKSd = split(value(x_BSD));
  const auto mixed_BHSd = at::scaled_dot_product_attention(
      query_BHSd, key_BKSd, value_BKSd, {}, /*dropout_p=*/0, options_.causal,
      /*scale=*/std::nullopt, /*enable_gqa=*/options_.kv_heads != options_.heads);
  return output(mixed_BHSd.transpose(1, 2).flatten(2));
}

double AttentionImpl::flops_per_token(int64_t seq) const {
  const int64_t width = options_.heads * options_.head_dim;
  const double products = 2 * product_flops(options_.dim, width) +
                          2 * product_flops(options_.dim, options_.kv_heads * options_.head_dim);
  const double both = 2 * product_flops(width, seq);  // with the keys, with the values
  return products + (options_.causal ? both / 2 : both);
}

/// Heads apart.
at::Tensor AttentionImpl::split(const at::Tensor& x) const {
  return x.unflatten(-1, {-1, options_.head_dim}).transpose(1, 2);
}

at::Tensor AttentionImpl::turned(const at::Tensor& x_BHSd) {
  return rotary_ ? (*rotary_)(x_BHSd) : x_BHSd;
}

}  // namespace sherd
