// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "ranks/rank_world.h"
#include "sherd/comm/communicator.h"

namespace sherd::testing {

inline at::TensorOptions on_device(at::ScalarType dtype) {
  return at::TensorOptions().dtype(dtype).device(test_world().device());
}

/// What rank `rank` contributes: values that tell ranks, calls and places apart, exact in every
/// dtype.
inline at::Tensor contribution(
    int64_t rank, int64_t count, at::ScalarType dtype, int64_t salt = 0) {
  auto values = (at::arange(count, at::kLong) * 7 + rank * 5 + salt * 3).remainder(23) -
                (dtype == at::kByte ? 0 : 11);
  return values.to(dtype).to(test_world().device());
}

/// The rank whose data a collective brings in place of `rank`'s: in an emulated world always this
/// one's.
inline int64_t seen(const Communicator& communicator, int64_t rank) {
  return communicator.backend() == "emulated" ? communicator.rank() : rank;
}

/// The ranks' contributions joined, in float64, in the order of the ranks.
inline at::Tensor joined(
    const Communicator& communicator,
    int64_t count,
    at::ScalarType dtype,
    Reduction reduction,
    int64_t salt = 0) {
  const bool emulated = communicator.backend() == "emulated";
  at::Tensor result;
  for (int64_t rank = 0; rank < communicator.size(); ++rank) {
    if (emulated && rank != communicator.rank()) continue;
    const auto values = contribution(rank, count, dtype, salt).to(at::kDouble);
    if (!result.defined()) {
      result = values;
    } else {
      result =
          reduction.kind == Reduction::Kind::max ? at::maximum(result, values) : result + values;
    }
  }
  if (reduction.kind == Reduction::Kind::mean && !emulated) result = result / communicator.size();
  if (reduction.kind == Reduction::Kind::scaled_sum) result = result * reduction.factor;
  return result;
}

/// Whether the values are equal but for one rounding to the dtype (NCCL rounds at each rank, so as
/// often).
inline bool near(
    const at::Tensor& actual, const at::Tensor& expected, const Communicator& communicator) {
  const auto dtype = actual.scalar_type();
  const double step = dtype == at::kBFloat16 ? 1.0 / 256 : dtype == at::kHalf ? 1.0 / 2048 : 1e-6;
  const double roundings =
      communicator.backend() == "nccl" ? static_cast<double>(communicator.size()) : 1;
  return at::allclose(actual.to(at::kDouble), expected, step * roundings, step * roundings * 10);
}

inline const std::vector<at::ScalarType>& moved_dtypes() {
  static const std::vector<at::ScalarType> dtypes{
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,          at::kChar,
      at::kShort, at::kInt,    at::kLong, at::kBool,     at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  return dtypes;
}

inline const std::vector<at::ScalarType>& floating_dtypes() {
  static const std::vector<at::ScalarType> dtypes{
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  return dtypes;
}

}  // namespace sherd::testing
