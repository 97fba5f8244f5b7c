// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/macros/Macros.h>

#include <cmath>

#include "kernels/keyed_fill.h"

namespace sherd {

/// Philox4x32 with ten rounds: a bijection of counters for each key, whose outputs pass as random.
struct Philox {
  uint32_t words[4];

  C10_HOST_DEVICE Philox(uint64_t key, uint64_t counter)
      : words{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0} {
    auto k0 = static_cast<uint32_t>(key);
    auto k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * words[0];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * words[2];
      const auto w1 = words[1];
      const auto w3 = words[3];
      words[0] = static_cast<uint32_t>(p1 >> 32) ^ w1 ^ k0;
      words[1] = static_cast<uint32_t>(p1);
      words[2] = static_cast<uint32_t>(p0 >> 32) ^ w3 ^ k1;
      words[3] = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  /// In (0, 1), from two words.
  C10_HOST_DEVICE double fraction(int first) const {
    const uint64_t bits = (uint64_t{words[first]} << 32 | words[first + 1]) >> 11;
    return (static_cast<double>(bits) + 0.5) * 0x1p-53;
  }
};

inline C10_HOST_DEVICE double keyed_value(
    uint64_t key, int64_t element, const KeyedValues& values) {
  if (values.kind == KeyedValues::Kind::constant) return values.a;
  const Philox random(key, static_cast<uint64_t>(element));
  const double u = random.fraction(0);
  if (values.kind == KeyedValues::Kind::uniform) return values.a + (values.b - values.a) * u;
  constexpr double kTau = 6.283185307179586;
  return values.a + values.b * sqrt(-2 * log(u)) * cos(kTau * random.fraction(2));
}

}  // namespace sherd
