// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// The shape of grouped-query attention.
struct AttentionShape {
  int64_t heads = 1;     ///< number of query heads
  int64_t kv_heads = 1;  ///< number of key heads, and of value heads; divides `heads`
  int64_t head_dim = 8;  ///< width of a head
  bool causal = true;    ///< positions see only themselves and earlier ones
};

/// The tables of rotary position embeddings: cosine and sine of the angles, [positions,
/// head_dim / 2], fp32, contiguous. Undefined tensors: no rotary embeddings.
struct RotaryTables {
  at::Tensor cosine;
  at::Tensor sine;
};

/// Returns scaled dot-product attention over packed queries, keys and values:
/// [B, S, (heads + 2 · kv_heads) · head_dim] to [B, S, heads · head_dim]. May apply the rotary
/// embeddings to `packed` in place, so nothing else may use it. Throws for shapes that don't fit.
///
/// In bf16 or fp16 on a GPU, with a head_dim that is a multiple of 8 and at most 128, it runs in
/// cuDNN and keeps for the backward `packed`, the output and one fp32 number per head and position.
/// Otherwise it is torch's scaled_dot_product_attention, which keeps more.
SHERD_API at::Tensor attention(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary = {});

}  // namespace sherd
