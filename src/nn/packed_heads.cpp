// SPDX-License-Identifier: Apache-2.0
#include "nn/packed_heads.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <tuple>

#include "kernels/meta_target.h"
#include "kernels/nn/rope.h"

namespace sherd {
namespace {

at::Tensor some_heads(const at::Tensor& packed, int64_t first, int64_t count, int64_t head_dim) {
  return packed.narrow(-1, first * head_dim, count * head_dim).unflatten(-1, {count, head_dim});
}

bool suits_cudnn(const at::Tensor& packed, const AttentionShape& shape) {
  const bool narrow = packed.scalar_type() == at::kBFloat16 || packed.scalar_type() == at::kHalf;
  return narrow && shape.head_dim % 8 == 0 && shape.head_dim <= 128;
}

}  // namespace

PackedHeads heads_of(const at::Tensor& packed, const AttentionShape& shape) {
  const auto [H, K, d] = std::tuple(shape.heads, shape.kv_heads, shape.head_dim);
  return {
      some_heads(packed, 0, H, d).transpose(1, 2), some_heads(packed, H, K, d).transpose(1, 2),
      some_heads(packed, H + K, K, d).transpose(1, 2)};
}

// Queries and keys lie one after the other.
void rotate(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary, bool back) {
  if (!rotary.cosine.defined()) return;
  const auto both = some_heads(packed, 0, shape.heads + shape.kv_heads, shape.head_dim);
  rope({both, both, rotary.cosine, rotary.sine, back});
}

at::Tensor empty_heads(const at::Tensor& like, int64_t heads, int64_t head_dim) {
  return at::empty({like.size(0), like.size(1), heads, head_dim}, like.options()).transpose(1, 2);
}

bool runs_by_cudnn(const at::Tensor& packed, const AttentionShape& shape) {
  const bool on_gpu = packed.is_meta() ? needs_device_tables(packed.device()) : packed.is_cuda();
  return on_gpu && suits_cudnn(packed, shape);
}

void check_attention(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary) {
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

}  // namespace sherd
