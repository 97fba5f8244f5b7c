// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S new positions, T positions with those in the cache, H heads, K heads of
// keys and values, d dim of a head.
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "nn/packed_heads.h"
#include "sherd/nn/functional.h"

namespace sherd {

at::Tensor cached_attention(
    const at::Tensor& packed,
    const AttentionShape& shape,
    const RotaryTables& rotary,
    const CachedHeads& cache) {
  check_attention(packed, shape, rotary);
  const int64_t S = packed.size(1), T = cache.count + S;
  for (const auto* one : {&cache.keys, &cache.values}) {
    TORCH_CHECK_VALUE(
        shape.causal && cache.count >= 0 && one->dim() == 4 && one->size(0) == packed.size(0) &&
            one->size(1) == shape.kv_heads && one->size(2) >= T && one->size(3) == shape.head_dim,
        "[nn] attention of ", S, " positions after ", cache.count, " of a cache of ", one->sizes(),
        ": it is causal, and the cache is [B, kv_heads, at least ", T, ", head_dim]");
  }
  TORCH_CHECK(
      !c10::GradMode::is_enabled(),
      "[nn] attention with a cache has no backward: call it under NoGradGuard");
  rotate(packed, shape, rotary, /*back=*/false);
  const auto [query_BHSd, key_BKSd, value_BKSd] = heads_of(packed, shape);
  cache.keys.narrow(2, cache.count, S).copy_(key_BKSd);
  cache.values.narrow(2, cache.count, S).copy_(value_BKSd);
  // One position sees all, and the first ones of a sequence need no mask of their own.
  std::optional<at::Tensor> mask_ST;
  const bool causal = S > 1 && cache.count == 0;
  if (S > 1 && !causal) {
    mask_ST = at::ones({S, T}, packed.options().dtype(at::kBool)).tril(cache.count);
  }
  const auto mixed_BHSd = at::scaled_dot_product_attention(
      query_BHSd, cache.keys.narrow(2, 0, T), cache.values.narrow(2, 0, T), mask_ST,
      /*dropout_p=*/0, causal, /*scale=*/std::nullopt,
      /*enable_gqa=*/shape.kv_heads != shape.heads);
  return mixed_BHSd.transpose(1, 2).flatten(2);
}

}  // namespace sherd
