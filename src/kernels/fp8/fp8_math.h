// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/macros/Macros.h>

#include <cstdint>
#include <cstring>

namespace sherd::fp8 {

// Numbers of 8 bits (e4m3: 4 bits of exponent, 3 of mantissa, largest 448, no infinity) and their
// scales, which are powers of two. Host and device compute the same bits: a scale follows from the
// bits of the largest magnitude (amax), and to divide by it is exact.

constexpr uint8_t kNaN = 0x7f;

inline C10_HOST_DEVICE uint32_t bits_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline C10_HOST_DEVICE float float_of(uint32_t bits) {
  float value = 0;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Returns the bits of |value|. As integers they are ordered as the magnitudes are, an infinity
/// above all numbers and a NaN above that, so the maximum of many is the same in any order.
inline C10_HOST_DEVICE uint32_t magnitude_bits(float value) {
  return bits_of(value) & 0x7fffffffu;
}

/// The scale of numbers whose largest magnitude has these bits: the least power of two s with
/// amax ≤ 448 s, at least 2^-126; 0 for zeros, so that they raise no maximum of scales; NaN if a
/// number is not finite.
inline C10_HOST_DEVICE float scale_of(uint32_t amax_bits) {
  if (amax_bits == 0) return 0.0f;
  const auto exponent = static_cast<int32_t>(amax_bits >> 23);  // biased
  if (exponent == 255) return float_of(0x7fc00000u);
  // 448 = 1.75 · 2^8.
  int32_t scale = exponent - 8 + ((amax_bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  if (scale < 1) scale = 1;
  return float_of(static_cast<uint32_t>(scale) << 23);
}

/// 1 / scale, exactly; NaN of a NaN, and 2^127 of 0. A scale is a power of two from 2^-126 to
/// 2^126.
inline C10_HOST_DEVICE float inverse_of(float scale) {
  const uint32_t bits = bits_of(scale);
  if (bits >= 0x7f800000u) return scale;
  return float_of((254u << 23) - bits);
}

/// The nearest number in e4m3, ties to even. Magnitudes above 464, and NaN, become NaN (the
/// positive one, always).
inline C10_HOST_DEVICE uint8_t encode(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal numbers: 20 bits of mantissa are rounded away, and the bias is 7 instead of 127.
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t normal = (rounded - (120u << 23)) >> 20;
  // Below 2^-6 the distance is always 2^-9: to add 2^14 rounds to it.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 16384.0f) - bits_of(16384.0f);
  uint32_t result = magnitude < (121u << 23) ? subnormal : normal;
  result |= (bits >> 24) & 0x80u;
  return static_cast<uint8_t>((result & 0x7fu) == kNaN || magnitude >= 0x43f00000u ? kNaN : result);
}

/// The value of a number in e4m3.
inline C10_HOST_DEVICE float decode(uint8_t number) {
  const uint32_t magnitude = number & 0x7fu;
  const uint32_t sign = (number & 0x80u) << 24;
  if (magnitude == kNaN) return float_of(sign | 0x7fc00000u);
  if (magnitude < 8u) {  // subnormal: multiples of 2^-9
    const float value = static_cast<float>(magnitude) * (1.0f / 512.0f);
    return float_of(bits_of(value) | sign);
  }
  return float_of(sign | ((magnitude << 20) + (120u << 23)));
}

// Scales of 8 bits (e8m0): the exponent of a power of two, biased by 127; 255 is NaN.

inline C10_HOST_DEVICE uint8_t exponent_of(float scale) {
  return static_cast<uint8_t>((bits_of(scale) >> 23) & 0xffu);
}
inline C10_HOST_DEVICE float scale_from(uint8_t exponent) {
  return exponent == 255 ? float_of(0x7fc00000u) : float_of(static_cast<uint32_t>(exponent) << 23);
}

}  // namespace sherd::fp8
