// SPDX-License-Identifier: Apache-2.0
// Shapes: T rows, G groups of a row, K elements of a group, D = G · K. Where there are no
// kernels, torch's operations do the math, some rows at a time.
#include "kernels/nn/gated_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>

#include "kernels/nn/in_vectors.h"
#include "kernels/nn/mamba_device.h"
#include "kernels/nn/mamba_on_cuda.h"
#include "kernels/nn/pieces.h"
#include "kernels/widened.h"

namespace sherd {
namespace {

/// Some rows of the operation.
struct GatedRows {
  at::Tensor x_TGK, gate_TGK, open_TGK, silu_TGK, unit_TGK, scale_TG1;

  GatedRows(const GatedNorm& norm, int64_t first, int64_t count) {
    const auto grouped = [&](const at::Tensor& rows) {
      return widened(rows.narrow(0, first, count)).unflatten(-1, {norm.groups, -1});
    };
    x_TGK = grouped(norm.x);
    gate_TGK = grouped(norm.gate);
    open_TGK = at::sigmoid(gate_TGK);
    silu_TGK = gate_TGK * open_TGK;
    unit_TGK = x_TGK * silu_TGK;
    scale_TG1 = (unit_TGK * unit_TGK).mean(-1, /*keepdim=*/true).add_(norm.epsilon).rsqrt_();
    unit_TGK.mul_(scale_TG1);
  }
};

template <class Visit>
void each_rows(const GatedNorm& norm, Visit visit) {
  const int64_t rows = norm.x.size(0);
  const int64_t most = pieces_at_once(norm.x.device(), rows, norm.x.size(1));
  for (int64_t first = 0; first < rows; first += most) visit(first, std::min(most, rows - first));
}

/// Whether the kernels of mamba_device.h can do it.
bool has_kernels(const GatedNorm& norm) {
  const int64_t width = norm.x.size(1) / norm.groups;
  return in_vectors(norm.x) && in_vectors(norm.gate) && width % 8 == 0 && width <= kMostGatedNorm;
}

}  // namespace

void gated_norm_forward(const GatedNorm& norm, const at::Tensor& y) {
  if (has_kernels(norm)) {
    if (!y.is_meta()) gated_norm_forward_on_cuda(norm, y);
    return;
  }
  each_rows(norm, [&](int64_t first, int64_t count) {
    const GatedRows rows(norm, first, count);
    y.narrow(0, first, count).copy_(rows.unit_TGK.flatten(1) * norm.weight);
  });
}

void gated_norm_backward(
    const GatedNorm& norm, const at::Tensor& y_gradient, const GatedNormGradients& result) {
  if (has_kernels(norm) && in_vectors(result.gate)) {
    const int64_t dim = norm.x.size(1);
    const auto sums = at::empty(
        {gated_norm_parts(static_cast<int>(dim), static_cast<int>(norm.groups)), dim},
        norm.weight.options());
    if (!sums.is_meta()) gated_norm_backward_on_cuda(norm, y_gradient, result, sums);
    result.weight.copy_(sums.sum(0));
    return;
  }
  result.weight.zero_();
  each_rows(norm, [&](int64_t first, int64_t count) {
    const GatedRows rows(norm, first, count);
    const auto put = [&](const at::Tensor& into_TD, const at::Tensor& values_TD) {
      into_TD.narrow(0, first, count).copy_(values_TD);
    };
    const auto incoming_TD = widened(y_gradient.narrow(0, first, count));
    result.weight.add_((incoming_TD * rows.unit_TGK.flatten(1)).sum(0));
    if (result.y.defined()) put(result.y, rows.unit_TGK.flatten(1) * norm.weight);
    auto d_gated_TGK = (incoming_TD * norm.weight).unflatten(-1, {norm.groups, -1});
    const auto along_TG1 = (d_gated_TGK * rows.unit_TGK).mean(-1, /*keepdim=*/true);
    d_gated_TGK.sub_(rows.unit_TGK * along_TG1).mul_(rows.scale_TG1);
    const auto slope_TGK = (rows.gate_TGK - rows.silu_TGK).add_(1).mul_(rows.open_TGK);
    put(result.gate, (d_gated_TGK * rows.x_TGK).mul_(slope_TGK).flatten(1));
    put(result.x, d_gated_TGK.mul_(rows.silu_TGK).flatten(1));
  });
}

}  // namespace sherd
