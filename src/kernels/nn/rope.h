// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// Rotary positions. Dims i and i + d/2 of a head at position s are a point that is turned by the
/// angle whose cosine and sine stand at [s, i], or back.
struct RopeWork {
  at::Tensor
      source{};  ///< [B, S, heads, d] with a dense last dim, floating point of 16 bits or more
  at::Tensor target{};  ///< alike; the same memory as the source, or disjoint
  at::Tensor cosine{};  ///< [at least S, d/2], fp32, dense
  at::Tensor sine{};
  bool back = false;
};

/// One pass on the current stream. fp32 math, rounded once.
void rope(const RopeWork& work);

/// In CUDA memory.
void rope_on_cuda(const RopeWork& work);

}  // namespace sherd
