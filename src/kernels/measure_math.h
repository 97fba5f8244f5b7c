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
  return known && norm > look.exploding * watched.norms ? Fault::exploding : Fault::none;
}

/// Whether one fault takes the place of another that was found before.
inline C10_HOST_DEVICE bool is_worse(Fault fault, Fault before, bool overflows) {
  if (before == Fault::none) return fault != Fault::none;
  const bool explodes = fault == Fault::exploding;
  const bool exploded = before == Fault::exploding;
  return fault != Fault::none && explodes != exploded && explodes == overflows;
}

inline C10_HOST_DEVICE void judge(Watched& watched, double squares, const Look& look) {
  const double norm = sqrt(squares);
  const auto fault = fault_of(watched, norm, look);
  if (is_worse(fault, static_cast<Fault>(watched.finding & 3), look.overflows)) {
    watched.finding = look.moment << 2 | static_cast<int64_t>(fault);
  }
  // A step in which nothing came (an expert without tokens) says nothing of the next.
  if (norm - norm != 0 || norm == 0 || !look.counts) return;
  if (watched.count < 100) ++watched.count;
  watched.norms += (norm - watched.norms) / static_cast<double>(watched.count);
}

}  // namespace sherd
