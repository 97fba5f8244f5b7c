// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "sherd/export.h"

namespace sherd {

/// Where heads lie in the packed product [B, S, (heads + 2 · kv_heads) · head_dim] of a token's
/// queries, keys and values, in this order, and the angles of positions 0 … S-1: dims i and
/// i + head_dim/2 of a head are turned by the angle with the cosine and sine of [position, i].
struct Rope {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  at::Tensor cosine;  ///< [at least S, head_dim/2], fp32, dense
  at::Tensor sine;
};

// In place, in fp32, rounded once. For the backward only the tables are kept: 0 bytes a token. No
// second derivative.

/// Turns queries and keys where they are, and returns `packed`, which may be a strided view (with a
/// dense last dim). The backward turns back the gradient where it is if nobody else holds it, else
/// a copy.
SHERD_API at::Tensor rope_(const at::Tensor& packed, const Rope& rope);

/// The same, and returns {queries [B, S, heads, head_dim], keys and values [B, S, kv_heads,
/// head_dim]} as views of the same memory. `packed` is used up: what needs its values in a backward
/// will say so. The backward turns the three gradients into one packed tensor in a pass each, where
/// slices would first be put together and then turned.
SHERD_API std::array<at::Tensor, 3> rope_split_(const at::Tensor& packed, const Rope& rope);

}  // namespace sherd
