// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, H heads, K heads of keys and values, d dim of a head.
#include "sherd/nn/functional.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/packed_heads.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Products on packed memory by cuDNN; on the meta device, what they allocate.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& packed,
      const AttentionShape& shape,
      const RotaryTables& rotary) {
    rotate(packed, shape, rotary, /*back=*/false);
    const auto [query, key, value] = heads_of(packed, shape);
    at::Tensor out_BHSd, sums, seed, offset;
    if (packed.is_meta()) {
      out_BHSd = empty_heads(packed, shape.heads, shape.head_dim);
      sums = at::empty(
          {packed.size(0), shape.heads, packed.size(1), 1}, packed.options().dtype(at::kFloat));
    } else {
      const auto results = at::_scaled_dot_product_cudnn_attention(
          query, key, value, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true,
          /*dropout_p=*/0, shape.causal);
      out_BHSd = std::get<0>(results);
      sums = std::get<1>(results);
      seed = std::get<6>(results);
      offset = std::get<7>(results);
    }
    context->save_for_backward({packed, out_BHSd, sums, seed, offset, rotary.cosine, rotary.sine});
    context->saved_data["heads"] = shape.heads;
    context->saved_data["kv_heads"] = shape.kv_heads;
    context->saved_data["head_dim"] = shape.head_dim;
    context->saved_data["causal"] = shape.causal;
    return out_BHSd.transpose(1, 2).flatten(2);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& [packed, out, sums] = std::tie(saved[0], saved[1], saved[2]);
    const AttentionShape shape{
        context->saved_data["heads"].toInt(), context->saved_data["kv_heads"].toInt(),
        context->saved_data["head_dim"].toInt(), context->saved_data["causal"].toBool()};
    const auto [query, key, value] = heads_of(packed, shape);
    const auto gradient_BHSd =
        gradients[0].unflatten(-1, {shape.heads, shape.head_dim}).transpose(1, 2);
    at::Tensor of_query, of_key, of_value;
    if (packed.is_meta()) {
      of_query = empty_heads(packed, shape.heads, shape.head_dim);
      of_key = empty_heads(packed, shape.kv_heads, shape.head_dim);
      of_value = empty_heads(packed, shape.kv_heads, shape.head_dim);
    } else {
      const int64_t length = packed.size(1);
      std::tie(of_query, of_key, of_value) = at::_scaled_dot_product_cudnn_attention_backward(
          gradient_BHSd, query, key, value, out, sums, saved[3], saved[4], /*attn_bias=*/{},
          /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, length, length, /*dropout_p=*/0, shape.causal);
    }
    const auto whole = at::cat(
        {of_query.transpose(1, 2).flatten(2), of_key.transpose(1, 2).flatten(2),
         of_value.transpose(1, 2).flatten(2)},
        -1);
    rotate(whole, shape, {saved[5], saved[6]}, /*back=*/true);
    return {whole, at::Tensor(), at::Tensor()};
  }
};

/// On the meta device: what torch's own attention allocates and keeps.
struct MetaAttention : torch::autograd::Function<MetaAttention> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& query_BHSd,
      const at::Tensor& key_BKSd,
      const at::Tensor& value_BKSd) {
    const auto [B, H, S] = std::tuple(query_BHSd.size(0), query_BHSd.size(1), query_BHSd.size(2));
    const auto query_BSHd = query_BHSd.transpose(1, 2);
    const auto out_BHSd = empty_heads(query_BSHd, H, query_BHSd.size(3));
    const auto sums = at::empty({B, S, H}, query_BHSd.options().dtype(at::kFloat));
    context->save_for_backward({query_BHSd, key_BKSd, value_BKSd, out_BHSd, sums});
    return out_BHSd;
  }

  static variable_list backward(AutogradContext* context, variable_list /*gradients*/) {
    const auto saved = context->get_saved_variables();
    const auto like = [&](size_t i) {
      return empty_heads(saved[i].transpose(1, 2), saved[i].size(1), saved[i].size(3));
    };
    return {like(0), like(1), like(2)};
  }
};

/// The same by operations that torch knows how to go back through.
at::Tensor turned(const at::Tensor& x_BHSd, const RotaryTables& rotary) {
  if (!rotary.cosine.defined()) return x_BHSd;
  const auto table = [&](const at::Tensor& half) {
    const auto rows = half.narrow(0, 0, x_BHSd.size(-2));
    return at::cat({rows, rows}, -1).to(x_BHSd.scalar_type());
  };
  const auto halves = x_BHSd.chunk(2, -1);
  return x_BHSd * table(rotary.cosine) + at::cat({-halves[1], halves[0]}, -1) * table(rotary.sine);
}

}  // namespace

at::Tensor attention(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary) {
  check_attention(packed, shape, rotary);
  if (runs_by_cudnn(packed, shape)) return AttentionFunction::apply(packed, shape, rotary);
  const auto [query, key, value] = heads_of(packed, shape);
  const auto turned_query = turned(query, rotary);
  const auto turned_key = turned(key, rotary);
  const auto mixed_BHSd =
      packed.is_meta() ? MetaAttention::apply(turned_query, turned_key, value)
                       : at::scaled_dot_product_attention(
                             turned_query, turned_key, value, {}, /*dropout_p=*/0, shape.causal,
                             /*scale=*/std::nullopt, /*enable_gqa=*/shape.kv_heads != shape.heads);
  return mixed_BHSd.transpose(1, 2).flatten(2);
}

}  // namespace sherd
