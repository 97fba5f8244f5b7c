// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/rms_norm.h"

#include <cmath>
#include <vector>

#include "kernels/cast_types.h"

namespace sherd {
namespace {

constexpr int64_t kLanes = 16;  // sums side by side: the compiler keeps them in registers

/// The sum of term(0) … term(count - 1).
template <class Math, class Term>
Math lane_sum(int64_t count, Term term) {
  Math lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (; i < count; ++i) lanes[0] += term(i);
  Math sum = 0;
  for (const Math lane : lanes) sum += lane;
  return sum;
}

template <class T>
void forward(const RmsNormForward& work) {
  using Math = CastMath<T, T>;
  const int64_t dim = work.weight.numel();
  const int64_t rows = work.scale.numel();
  const auto* weight = work.weight.const_data_ptr<T>();
  auto* scales = work.scale.mutable_data_ptr<Math>();
  for (int64_t row = 0; row < rows; ++row) {
    const auto* values = work.x.const_data_ptr<T>() + row * dim;
    auto* y = work.y.mutable_data_ptr<T>() + row * dim;
    if (work.residual.defined()) {
      const auto* residual = work.residual.const_data_ptr<T>() + row * dim;
      auto* sum = work.sum.mutable_data_ptr<T>() + row * dim;
      for (int64_t i = 0; i < dim; ++i) {
        sum[i] = static_cast<T>(static_cast<Math>(values[i]) + static_cast<Math>(residual[i]));
      }
      values = sum;
    }
    const Math squares = lane_sum<Math>(dim, [&](int64_t i) {
      const auto value = static_cast<Math>(values[i]);
      return value * value;
    });
    const Math scale =
        1 / std::sqrt(squares / static_cast<Math>(dim) + static_cast<Math>(work.epsilon));
    scales[row] = scale;
    for (int64_t i = 0; i < dim; ++i) {
      y[i] = static_cast<T>(static_cast<Math>(values[i]) * scale * static_cast<Math>(weight[i]));
    }
  }
}

/// Returns the weight's gradient.
template <class T>
std::vector<CastMath<T, T>> backward(const RmsNormBackward& work) {
  using Math = CastMath<T, T>;
  const int64_t dim = work.weight.numel();
  const int64_t rows = work.scale.numel();
  const auto* weight = work.weight.const_data_ptr<T>();
  const auto* scales = work.scale.const_data_ptr<Math>();
  std::vector<Math> weight_gradient(static_cast<size_t>(dim));
  for (int64_t row = 0; row < rows; ++row) {
    const auto* y_gradient = work.y_gradient.const_data_ptr<T>() + row * dim;
    const auto* sum = work.sum.const_data_ptr<T>() + row * dim;
    const auto* more =
        work.sum_gradient.defined() ? work.sum_gradient.const_data_ptr<T>() + row * dim : nullptr;
    auto* gradient = work.gradient.mutable_data_ptr<T>() + row * dim;
    const Math scale = scales[row];
    const Math along = lane_sum<Math>(dim, [&](int64_t i) {
      return static_cast<Math>(y_gradient[i]) * static_cast<Math>(weight[i]) *
             static_cast<Math>(sum[i]);
    });
    const Math mean = along * scale / static_cast<Math>(dim);
    for (int64_t i = 0; i < dim; ++i) {
      const Math normed = static_cast<Math>(sum[i]) * scale;
      const auto incoming = static_cast<Math>(y_gradient[i]);
      Math value = scale * (incoming * static_cast<Math>(weight[i]) - normed * mean);
      if (more) value += static_cast<Math>(more[i]);
      gradient[i] = static_cast<T>(value);
      weight_gradient[static_cast<size_t>(i)] += incoming * normed;
    }
  }
  return weight_gradient;
}

}  // namespace

void rms_norm_forward(const RmsNormForward& work) {
  if (work.x.is_meta()) return;
  if (work.x.is_cuda()) return rms_norm_forward_on_cuda(work);
  with_float_type(work.x.scalar_type(), [&](auto type) { forward<decltype(type)>(work); });
}

void rms_norm_backward(const RmsNormBackward& work) {
  if (work.sum.is_meta()) return;
  if (work.sum.is_cuda()) return rms_norm_backward_on_cuda(work);
  with_float_type(work.sum.scalar_type(), [&](auto type) {
    const auto found = backward<decltype(type)>(work);
    if (!work.weight_gradient.defined()) return;
    const CastCopy one{
        work.weight_gradient.mutable_data_ptr(), found.data(), std::ssize(found), work.add};
    const auto math = sizeof(found[0]) == sizeof(double) ? c10::kDouble : c10::kFloat;
    cast_copy({&one, 1}, {work.weight_gradient.scalar_type(), math}, work.sum.device());
  });
}

}  // namespace sherd
