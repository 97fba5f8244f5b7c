// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd::fp8 {

// Loops on CPU that the compiler makes vectors of.

/// Returns the bits of the largest magnitude.
uint32_t largest_magnitude(const float* values, int64_t count);
/// Encodes values[i] · factor.
void encode_all(const float* values, float factor, uint8_t* result, int64_t count);

}  // namespace sherd::fp8
