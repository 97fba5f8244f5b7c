// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd {

/// How a reduction combines the ranks' values. Integers have sum and max only.
struct Reduction {
  enum class Kind : uint8_t { sum, mean, max, scaled_sum };
  Kind kind = Kind::sum;
  double factor = 1;  ///< factor on the sum, for scaled_sum

  static Reduction sum() { return {Kind::sum, 1}; }
  static Reduction mean() { return {Kind::mean, 1}; }
  static Reduction max() { return {Kind::max, 1}; }
  static Reduction scaled_sum(double factor) { return {Kind::scaled_sum, factor}; }
};

}  // namespace sherd
