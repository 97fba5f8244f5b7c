// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "sherd/export.h"

namespace sherd {

/// The heads and angles of rotary position embeddings, for queries, keys and values packed in this
/// order in [B, S, (heads + 2 · kv_heads) · head_dim]. At each position, dims i and i + head_dim/2
/// of a head are rotated by the angle whose cosine and sine are at [position, i].
struct Rope {
  int64_t heads = 1;     ///< number of query heads
  int64_t kv_heads = 1;  ///< number of key heads, and of value heads
  at::Tensor cosine;     ///< [at least S, head_dim/2], fp32, contiguous
  at::Tensor sine;       ///< as the cosine
};

// Both work in place, compute in fp32 and round once. For the backward they keep the tables alone:
// 0 bytes a token. Second derivatives throw, and so do shapes and dtypes that don't fit.

/// Rotates queries and keys in place and returns `packed`, which may be a strided view with a
/// contiguous last dim. The backward rotates the gradient back, in place if nothing else refers to
/// it, else in a copy.
SHERD_API at::Tensor rope_(const at::Tensor& packed, const Rope& rope);

/// Rotates queries and keys in place and returns {queries, keys, values} as views of the same
/// memory: [B, S, heads, head_dim], and [B, S, kv_heads, head_dim] twice. Do not use `packed`
/// afterwards: a backward that needs its values throws. The backward writes the three gradients
/// straight into one packed tensor, one kernel each, without joining slices first.
SHERD_API std::array<at::Tensor, 3> rope_split_(const at::Tensor& packed, const Rope& rope);

}  // namespace sherd
