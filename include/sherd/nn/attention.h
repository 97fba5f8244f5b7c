// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// Heads of queries in groups that share their keys and values.
struct AttentionShape {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 8;
  bool causal = true;
};

/// Rotary positions: cosine and sine of the angles, [positions, head_dim / 2], fp32; or none.
struct RotaryTables {
  at::Tensor cosine;
  at::Tensor sine;
};

/// Attention over packed queries, keys and values: [B, S, (heads + 2 kv_heads) · head_dim] to
/// [B, S, heads · head_dim]. Queries and keys are turned in place, so nobody else may use what is
/// packed.
///
/// Kept for the backward: what was packed and the output, in their dtype, and one fp32 number per
/// head and position.
SHERD_API at::Tensor attention(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary = {});

}  // namespace sherd
