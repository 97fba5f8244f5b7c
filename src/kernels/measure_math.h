// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/macros/Macros.h>

#include <cmath>

#include "kernels/measure.h"

namespace sherd {

/// Steps until a mean says something.
constexpr int64_t kEnoughSteps = 10;

inline C10_HOST_DEVICE Fault fault_of(const Watched& watched, double norm, const Look& look) {
  if (norm != norm) return Fault::nan;
  if (norm - norm != 0) return Fault::infinite;
  const bool known = look.exploding > 0 && watched.count >= kEnoughSteps;
  // A norm that has always been 0 says nothing either.
  return known && watched.norms > 0 && norm > look.exploding * watched.norms ? Fault::exploding
                                                                             : Fault::none;
}

inline C10_HOST_DEVICE void judge(Watched& watched, double squares, const Look& look) {
  const double norm = sqrt(squares);
  const auto fault = fault_of(watched, norm, look);
  if (fault != Fault::none && watched.finding == 0) {
    watched.finding = look.moment << 2 | static_cast<int64_t>(fault);
  }
  if (norm - norm != 0 || !look.counts) return;
  if (watched.count < 100) ++watched.count;
  watched.norms += (norm - watched.norms) / static_cast<double>(watched.count);
}

}  // namespace sherd
