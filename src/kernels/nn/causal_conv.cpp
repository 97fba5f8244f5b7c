// SPDX-License-Identifier: Apache-2.0
// Shapes: S positions, C channels. Where there are no kernels, torch's operations do the
// math, a sequence at a time.
#include "kernels/nn/causal_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "kernels/nn/in_vectors.h"
#include "kernels/nn/mamba_device.h"
#include "kernels/nn/mamba_on_cuda.h"
#include "kernels/widened.h"

namespace sherd {
namespace {

/// Calls visit(lag, weight_C, count) for each of the filter's positions: the last `count` positions
/// of a sequence have one that is `lag` positions earlier.
template <class Visit>
void each_lag(const CausalConv& conv, Visit visit) {
  const int64_t width = conv.filter.size(1), positions = conv.x.size(1);
  for (int64_t lag = 0; lag < std::min(width, positions); ++lag) {
    visit(lag, conv.filter.select(1, width - 1 - lag), positions - lag);
  }
}

/// The sums before the SiLU.
at::Tensor sums_of(const CausalConv& conv, const at::Tensor& x_SC) {
  auto sums_SC = conv.bias.expand_as(x_SC).clone();
  each_lag(conv, [&](int64_t lag, const at::Tensor& weight_C, int64_t count) {
    sums_SC.narrow(0, lag, count).addcmul_(x_SC.narrow(0, 0, count), weight_C);
  });
  return sums_SC;
}

/// Whether the kernels of mamba_device.h can do it.
bool has_kernels(const CausalConv& conv) {
  return in_vectors(conv.x) && conv.filter.size(1) == kDeviceConvWidth;
}

}  // namespace

void causal_conv_forward(const CausalConv& conv, const at::Tensor& y) {
  if (has_kernels(conv)) {
    if (!y.is_meta()) causal_conv_forward_on_cuda(conv, y);
    return;
  }
  for (int64_t sequence = 0; sequence < y.size(0); ++sequence) {
    const auto sums_SC = sums_of(conv, widened(conv.x.select(0, sequence)));
    y.select(0, sequence).copy_(at::sigmoid(sums_SC).mul_(sums_SC));
  }
}

void causal_conv_backward(
    const CausalConv& conv, const at::Tensor& y_gradient, const CausalConvGradients& result) {
  if (has_kernels(conv) && in_vectors(result.x)) {
    const int64_t runs = (conv.x.size(1) + kConvRun - 1) / kConvRun;
    const auto sums = at::empty(
        {conv.x.size(0) * runs, kDeviceConvWidth + 1, conv.x.size(2)}, conv.filter.options());
    if (!sums.is_meta()) causal_conv_backward_on_cuda(conv, y_gradient, result.x, sums);
    const auto sum = sums.sum(0);
    result.filter.copy_(sum.narrow(0, 0, kDeviceConvWidth).t());
    result.bias.copy_(sum[kDeviceConvWidth]);
    return;
  }
  result.filter.zero_();
  result.bias.zero_();
  const int64_t width = conv.filter.size(1);
  for (int64_t sequence = 0; sequence < y_gradient.size(0); ++sequence) {
    const auto x_SC = widened(conv.x.select(0, sequence));
    const auto sums_SC = sums_of(conv, x_SC);
    const auto open_SC = at::sigmoid(sums_SC);
    const auto slope_SC = (sums_SC - sums_SC * open_SC).add_(1).mul_(open_SC);
    const auto d_sums_SC = slope_SC * widened(y_gradient.select(0, sequence));
    const auto d_x_SC = at::zeros_like(x_SC);
    each_lag(conv, [&](int64_t lag, const at::Tensor& weight_C, int64_t count) {
      const auto later_SC = d_sums_SC.narrow(0, lag, count);
      d_x_SC.narrow(0, 0, count).addcmul_(later_SC, weight_C);
      result.filter.select(1, width - 1 - lag).add_((later_SC * x_SC.narrow(0, 0, count)).sum(0));
    });
    result.x.select(0, sequence).copy_(d_x_SC);
    result.bias.add_(d_sums_SC.sum(0));
  }
}

}  // namespace sherd
