// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim.
#include "models/blocks/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "models/blocks/feed_forward.h"
#include "sherd/nn/functional.h"

namespace sherd {

namespace {

/// Returns the heads that this rank has.
AttentionShape part_of_heads(const AttentionOptions& options) {
  const int64_t ranks = options.ranks.tp();
  TORCH_CHECK_VALUE(
      options.heads % ranks == 0 && options.kv_heads % ranks == 0, "[models] attention with ",
      options.heads, " heads and ", options.kv_heads, " of keys and values on ", ranks,
      " ranks along 'tp': the ranks must divide both; use fewer of them");
  TORCH_CHECK_VALUE(
      ranks == 1 || !options.qk_norm_across, "[models] attention with qk_norm_across on ", ranks,
      " ranks along 'tp': queries and keys are normed over all heads, but a rank has only its "
      "own; use one rank along 'tp'");
  return {options.heads / ranks, options.kv_heads / ranks, options.head_dim, options.causal};
}

}  // namespace

AttentionOptions attention_of(const LlamaOptions& options) {
  const SequenceRanks ranks(options.mesh);
  return {
      .dim = options.dim,
      .heads = options.heads,
      .kv_heads = options.kv_heads,
      .head_dim = options.head_dim,
      .qkv_bias = options.qkv_bias,
      .qk_norm = options.qk_norm ? std::optional(options.norm_eps) : std::nullopt,
      .qk_norm_across = options.qk_norm_across,
      .rotary =
          RotaryOptions{
              .head_dim = options.head_dim,
              .theta = options.rope_theta,
              .scaling = options.rope_scaling,
              .context = ranks.context},
      .ranks = ranks};
}

AttentionImpl::AttentionImpl(const AttentionOptions& options)
    : options_(options), shape_(part_of_heads(options)) {
  if (options.rotary) {
    rotary_.emplace(*options.rotary);
    cached_rotary_.emplace(*options.rotary);
  }
  const int64_t width = shape_.heads * options.head_dim;
  const int64_t narrow = shape_.kv_heads * options.head_dim;
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
  const int64_t narrow = shape_.kv_heads * shape_.head_dim;
  const auto parts = packed.split_with_sizes({shape_.heads * shape_.head_dim, narrow, narrow}, -1);
  const auto heads_of = [&](const at::Tensor& part) {
    return part.unflatten(-1, {-1, options_.qk_norm_across ? part.size(-1) : options_.head_dim});
  };
  const auto query = query_norm(heads_of(parts[0])).flatten(-2);
  const auto key = key_norm(heads_of(parts[1])).flatten(-2);
  return at::cat({query, key, parts[2]}, -1);
}

RotaryTables AttentionImpl::tables(int64_t positions, c10::Device device) {
  return rotary_ ? rotary_->tables(positions, device) : RotaryTables();
}

// Positions begin anew in each document, so all of them read the first rows of the same tables.
at::Tensor AttentionImpl::within_documents(const at::Tensor& packed, const at::Tensor& documents) {
  const auto sizes = documents.diff();
  const auto* begin = sizes.const_data_ptr<int64_t>();
  const auto rotary = tables(packed.size(1), packed.device());
  // One split, whose backward is one concatenation; narrowing would add up as many gradients.
  std::vector<at::Tensor> results;
  for (const auto& rows : packed.flatten(0, 1).split_with_sizes({begin, begin + sizes.numel()})) {
    results.push_back(sherd::attention(rows.unsqueeze(0), shape_, rotary));
  }
  return at::cat(results, 1).view({packed.size(0), packed.size(1), -1});
}

at::Tensor AttentionImpl::beyond_cache(const at::Tensor& packed, const AttentionScope& scope) {
  auto& [keys, values] = *scope.cached;
  if (!keys.defined()) {
    const c10::DimVector sizes{packed.size(0), shape_.kv_heads, scope.capacity, shape_.head_dim};
    keys = at::empty(sizes, packed.options());
    values = at::empty(sizes, packed.options());
  }
  RotaryTables rotary;
  if (cached_rotary_) {
    const auto& all = cached_rotary_->tables(scope.capacity, packed.device());
    const int64_t count = packed.size(1);
    rotary = {all.cosine.narrow(0, scope.begin, count), all.sine.narrow(0, scope.begin, count)};
  }
  return cached_attention(packed, shape_, rotary, {keys, values, scope.begin});
}

at::Tensor AttentionImpl::mixed(const at::Tensor& packed, const AttentionScope& scope) {
  const auto& [tensor, context] = std::tie(options_.ranks.tensor, options_.ranks.context);
  const auto heads = query_norm ? with_normed_heads(packed) : packed;
  const auto mix = [&] {
    if (scope.cached) return beyond_cache(heads, scope);
    if (scope.documents.defined()) return within_documents(heads, scope.documents);
    const auto rotary = tables(packed.size(1), packed.device());
    return context ? context_attention(heads, shape_, rotary, *context)
                   : sherd::attention(heads, shape_, rotary);
  };
  const auto result = output(mix());
  return tensor ? tensor->scatter_sum(result, 1) : result;
}

at::Tensor AttentionImpl::forward(const at::Tensor& x_BSD) {
  const auto& tensor = options_.ranks.tensor;
  return mixed(qkv(tensor ? tensor->gather_rows(x_BSD, 1) : x_BSD), {});
}

std::tuple<at::Tensor, at::Tensor> AttentionImpl::normed(
    const at::Tensor& x_BSD, const RmsNorm& norm, const AttentionScope& scope) {
  auto [x, packed] =
      norm_linear(x_BSD, {}, {norm->weight, norm->epsilon, options_.ranks.tensor}, qkv->weight);
  if (options_.qkv_bias) packed = packed + qkv->bias.to(packed.scalar_type());
  return {x, mixed(packed, scope)};
}

double AttentionImpl::flops_per_token(int64_t seq) const {
  const int64_t width = options_.heads * options_.head_dim;
  const double products = 2 * product_flops(options_.dim, width) +
                          2 * product_flops(options_.dim, options_.kv_heads * options_.head_dim);
  const double both = 2 * product_flops(width, seq);  // with the keys, with the values
  return products + (options_.causal ? both / 2 : both);
}

}  // namespace sherd
