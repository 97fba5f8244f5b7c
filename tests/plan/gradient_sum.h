// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sherd::testing {

/// What one pass has given to a gradient.
struct Share {
  uint8_t calls = 0;  ///< of the unit, whose gradients are in it
  uint8_t inner = 0;  ///< reductions over the inner axis
  uint8_t outer = 0;
  uint8_t divided = 0;
  friend bool operator==(const Share&, const Share&) = default;
};

/// A gradient, as the sum of what the passes have given to it.
struct Sum {
  static constexpr size_t kMostPasses = 8;
  std::array<Share, kMostPasses> of{};

  void add(const Sum& more) {
    for (size_t pass = 0; pass < kMostPasses; ++pass) {
      auto& share = of[pass];
      const auto& other = more.of[pass];
      if (other.calls == 0) continue;
      const bool alike = share.inner == other.inner && share.outer == other.outer &&
                         share.divided == other.divided;
      const uint8_t calls = static_cast<uint8_t>(share.calls + other.calls);
      if (share.calls == 0) {
        share = other;
      } else {
        share.calls = alike ? calls : kNonsense;
      }
    }
  }
  void add_call(int32_t pass) {
    Sum call;
    call.of[static_cast<size_t>(pass)].calls = 1;
    add(call);
  }
  /// Everything in it goes through a reduction or a division.
  void count(uint8_t Share::*what) {
    for (auto& share : of) {
      if (share.calls > 0) ++(share.*what);
    }
  }
  friend bool operator==(const Sum&, const Sum&) = default;

 private:
  static constexpr uint8_t kNonsense = 200;  // calls, where the reduced meets the unreduced
};

}  // namespace sherd::testing
