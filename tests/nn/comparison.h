// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "device_list.h"

// Fused operations against plain ones in fp64, on every device that this machine has.
namespace sherd::testing {

inline constexpr std::array kDtypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

/// Half the distance between neighbours, over their size: what rounding once may change.
inline double rounding(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16: return std::ldexp(1, -8);
    case at::kHalf: return std::ldexp(1, -11);
    case at::kFloat: return std::ldexp(1, -24);
    default: return std::ldexp(1, -53);
  }
}

/// What fp32 math (or fp64) leaves of a result, relative to its largest element.
inline double math_error(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13 : 5e-6;
}

inline at::Tensor wide(const at::Tensor& x) {
  return x.detach().cpu().to(at::kDouble);
}

/// Asserts that each element is the reference, worked out in fp32 and rounded once to its dtype.
inline void expect_rounded_once(
    const at::Tensor& found, const at::Tensor& reference, const char* what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), reference.sizes()) << what;
  if (found.numel() == 0) return;
  const auto dtype = found.scalar_type();
  const auto wanted = wide(reference);
  const auto allowed = wanted.abs() * (1.01 * rounding(dtype)) +
                       wanted.abs().max() * math_error(dtype) +
                       (dtype == at::kHalf ? 6e-8 : 0);  // which has no smaller numbers
  const auto excess = ((wide(found) - wanted).abs() - allowed).max().item<double>();
  EXPECT_LE(excess, 0) << what << " " << dtype << " " << found.sizes();
}

/// Asserts that the difference is small as a whole: where values were rounded on the way, a few
/// times.
inline void expect_close(
    const at::Tensor& found, const at::Tensor& reference, double roundings, const char* what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), reference.sizes()) << what;
  if (found.numel() == 0) return;
  const auto dtype = found.scalar_type();
  const auto wanted = wide(reference);
  const double difference = (wide(found) - wanted).norm().item<double>();
  const double long_sums = 6 * math_error(dtype);
  const double allowed = wanted.norm().item<double>() * (roundings * rounding(dtype) + long_sums);
  EXPECT_LE(difference, allowed) << what << " " << dtype << " " << found.sizes();
}

class OnDevice : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override { at::manual_seed(7); }
  c10::Device device() const { return c10::Device(GetParam()); }
  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions(dtype).device(device());
  }
  /// The same numbers on every device.
  at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype, double scale = 1) const {
    return (at::randn(shape, at::kDouble) * scale).to(dtype).to(device());
  }
  at::Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype, double scale = 1) const {
    return random(shape, dtype, scale).set_requires_grad(true);
  }
};

/// A leaf with the same values in fp64, on CPU.
inline at::Tensor twin(const at::Tensor& x) {
  return wide(x).clone().set_requires_grad(true);
}

/// What `x` becomes when it is stored in `dtype`; its gradient passes unchanged.
inline at::Tensor stored(const at::Tensor& x, at::ScalarType dtype) {
  return x + (x.detach().to(dtype).to(at::kDouble) - x.detach());
}

inline std::string device_name(const ::testing::TestParamInfo<c10::DeviceType>& one) {
  return c10::DeviceTypeName(one.param, /*lower_case=*/true);
}

}  // namespace sherd::testing

#define SHERD_ON_DEVICES(Suite) \
  INSTANTIATE_TEST_SUITE_P(Devices, Suite, ::testing::ValuesIn(devices()), device_name)
