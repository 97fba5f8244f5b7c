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
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/meta_target.h"
#include "kernels/nn/rope.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Queries, keys and values as views, [B, heads, S, d] each.
struct Views {
  at::Tensor query_BHSd;
  at::Tensor key_BKSd;
  at::Tensor value_BKSd;
};

at::Tensor heads_of(const at::Tensor& packed, int64_t first, int64_t count, int64_t head_dim) {
  return packed.narrow(-1, first * head_dim, count * head_dim).unflatten(-1, {count, head_dim});
}

Views views_of(const at::Tensor& packed, const AttentionShape& shape) {
  const auto [H, K, d] = std::tuple(shape.heads, shape.kv_heads, shape.head_dim);
  return {
      heads_of(packed, 0, H, d).transpose(1, 2), heads_of(packed, H, K, d).transpose(1, 2),
      heads_of(packed, H + K, K, d).transpose(1, 2)};
}

/// Queries and keys, which lie one after the other.
void turn(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary, bool back) {
  if (!rotary.cosine.defined()) return;
  const auto both = heads_of(packed, 0, shape.heads + shape.kv_heads, shape.head_dim);
  rope({both, both, rotary.cosine, rotary.sine, back});
}

/// cuDNN's own layout: heads innermost but one, so that what comes out needs no copy.
at::Tensor empty_heads(const at::Tensor& like, int64_t heads, int64_t head_dim) {
  return at::empty({like.size(0), like.size(1), heads, head_dim}, like.options()).transpose(1, 2);
}

bool suits_cudnn(const at::Tensor& packed, const AttentionShape& shape) {
  const bool narrow = packed.scalar_type() == at::kBFloat16 || packed.scalar_type() == at::kHalf;
  return narrow && shape.head_dim % 8 == 0 && shape.head_dim <= 128;
}

/// Whether cuDNN runs it on the device that is meant.
bool runs_by_cudnn(const at::Tensor& packed, const AttentionShape& shape) {
  const bool on_gpu = packed.is_meta() ? needs_device_tables(packed.device()) : packed.is_cuda();
  return on_gpu && suits_cudnn(packed, shape);
}

/// Products on packed memory by cuDNN; on the meta device, what they allocate.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& packed,
      const AttentionShape& shape,
      const RotaryTables& rotary) {
    turn(packed, shape, rotary, /*back=*/false);
    const auto [query, key, value] = views_of(packed, shape);
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
    const auto [query, key, value] = views_of(packed, shape);
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
    turn(whole, shape, {saved[5], saved[6]}, /*back=*/true);
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

void check(const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary) {
  TORCH_CHECK_VALUE(
      packed.dim() == 3 && shape.heads > 0 && shape.kv_heads > 0 &&
          shape.heads % shape.kv_heads == 0 &&
          packed.size(2) == (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
      "[nn] attention of ", packed.sizes(), " with ", shape.heads, " heads, ", shape.kv_heads,
      " of keys and values, of ", shape.head_dim,
      ": packed are [B, S, (heads + 2 kv_heads) head_dim], and kv_heads divide heads");
  if (!rotary.cosine.defined()) return;
  for (const auto* table : {&rotary.cosine, &rotary.sine}) {
    TORCH_CHECK_VALUE(
        table->defined() && table->dim() == 2 && table->size(0) >= packed.size(1) &&
            2 * table->size(1) == shape.head_dim && table->scalar_type() == at::kFloat &&
            table->is_contiguous(),
        "[nn] attention over ", packed.size(1), " positions of ", shape.head_dim,
        ": rotary tables are [at least as many positions, head_dim / 2], fp32 and dense");
  }
}

}  // namespace

at::Tensor attention(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary) {
  check(packed, shape, rotary);
  if (runs_by_cudnn(packed, shape)) return AttentionFunction::apply(packed, shape, rotary);
  const auto [query, key, value] = views_of(packed, shape);
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
