// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, H heads, K heads of keys and values, d dim of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/nn/functional.h"

namespace sherd {

/// Queries, keys and values as views of packed memory, [B, heads, S, d] each.
struct PackedHeads {
  at::Tensor query_BHSd;
  at::Tensor key_BKSd;
  at::Tensor value_BKSd;
};
PackedHeads heads_of(const at::Tensor& packed, const AttentionShape& shape);

/// Applies the rotary embeddings to queries and keys in place, or takes them back. Undefined
/// tables: does nothing.
void rotate(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary, bool back);

/// Returns an empty tensor in cuDNN's own layout: heads innermost but one, so that what comes out
/// needs no copy. `like` is [B, S, ..].
at::Tensor empty_heads(const at::Tensor& like, int64_t heads, int64_t head_dim);

/// Returns whether cuDNN runs the attention on the device that is meant.
bool runs_by_cudnn(const at::Tensor& packed, const AttentionShape& shape);

/// Throws for shapes that don't fit.
void check_attention(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary);

}  // namespace sherd
