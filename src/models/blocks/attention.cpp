// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim.
#include "models/blocks/attention.h"

#include "models/blocks/feed_forward.h"
#include "sherd/nn/functional.h"

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
  qkv = register_module("qkv", plain_linear(options.dim, width + 2 * narrow));
  output = register_module("output", plain_linear(width, options.dim));
}

at::Tensor AttentionImpl::mixed(const at::Tensor& packed) {
  RotaryTables tables;
  if (rotary_) tables = rotary_->tables(packed.size(1), packed.device());
  const AttentionShape shape{options_.heads, options_.kv_heads, options_.head_dim, options_.causal};
  return output(sherd::attention(packed, shape, tables));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BSD) {
  return mixed(qkv(x_BSD));
}

std::tuple<at::Tensor, at::Tensor> AttentionImpl::normed(
    const at::Tensor& x_BSD, const RmsNorm& norm) {
  const auto [x, packed] = norm_linear(x_BSD, {}, {norm->weight, norm->epsilon}, qkv->weight);
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
