// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <type_traits>

#include "kernels/cast_copy.h"

namespace sherd {

/// The type that a copy is computed in.
template <class Target, class Source>
using CastMath = std::
    conditional_t<std::is_same_v<Target, double> || std::is_same_v<Source, double>, double, float>;

/// Converts a value, by way of fp32 for types that float alone converts to.
template <class Target, class Math>
constexpr C10_HOST_DEVICE Target cast_to(Math value) {
  if constexpr (std::is_floating_point_v<Target>) {
    return static_cast<Target>(value);
  } else {
    return static_cast<Target>(static_cast<float>(value));
  }
}

/// Calls `visitor` with a value of the type that `dtype` names.
template <class Visitor>
void with_float_type(c10::ScalarType dtype, Visitor visitor) {
  switch (dtype) {
    case c10::kFloat: return visitor(float{});
    case c10::kDouble: return visitor(double{});
    case c10::kHalf: return visitor(c10::Half{});
    case c10::kBFloat16: return visitor(c10::BFloat16{});
    default:
      TORCH_CHECK_VALUE(
          false, "[kernels] gradients of dtype ", dtype,
          " can't be added up: use floating point of 16 bits or more");
  }
}

}  // namespace sherd
