// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace sherd {

/// A copy into a buffer that casts and divides: target[i] = source[i] / divisor, or that much more.
/// Target and source are `count` elements each, the same or disjoint.
struct CastCopy {
  void* target = nullptr;
  const void* source = nullptr;
  int64_t count = 0;
  bool add = false;
};

/// The dtypes of both sides, and what all values are divided by (in fp32, or fp64 where one side
/// is).
struct CastCopyKind {
  c10::ScalarType target{};
  c10::ScalarType source{};
  double divisor = 1;
};

/// Floating point of 16 bits or more.
bool is_float16_or_wider(c10::ScalarType dtype);

/// Makes the copies, on CUDA by one kernel per 64 of them on the current stream.
void cast_copy(std::span<const CastCopy> copies, const CastCopyKind& kind, c10::Device device);

/// As above, in CUDA memory.
void cast_copy_on_cuda(
    std::span<const CastCopy> copies, const CastCopyKind& kind, c10::Device device);

}  // namespace sherd
