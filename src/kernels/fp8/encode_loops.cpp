// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/encode_loops.h"

#include "kernels/cpu_multiversion.h"
#include "kernels/fp8/fp8_math.h"

namespace sherd::fp8 {

SHERD_CPU_MULTIVERSION uint32_t largest_magnitude(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(values[i]);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

SHERD_CPU_MULTIVERSION void encode_all(
    const float* values, float factor, uint8_t* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = encode(values[i] * factor);
}

}  // namespace sherd::fp8
