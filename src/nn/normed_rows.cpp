// SPDX-License-Identifier: Apache-2.0
#include "nn/normed_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include "kernels/cast_copy.h"
#include "kernels/nn/rms_norm.h"
#include "nn/weight_gradient.h"

namespace sherd {

std::pair<at::Tensor, std::optional<at::Tensor>> norm_inputs(
    const char* operation,
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm) {
  TORCH_CHECK_VALUE(
      x.dim() >= 1 && norm.weight.dim() == 1 && norm.weight.numel() > 0 &&
          x.size(-1) == norm.weight.numel() && is_float16_or_wider(x.scalar_type()),
      "[nn] ", operation, " of ", x.sizes(), " ", x.scalar_type(), " with a norm of ",
      norm.weight.sizes(),
      ": the norm has one element for each of the last dim, in floating point of 16 bits or more");
  if (!residual.defined()) return {x, std::nullopt};
  TORCH_CHECK_VALUE(
      x.sizes() == residual.sizes(), "[nn] ", operation, " of ", x.sizes(), " and ",
      residual.sizes(), ": use tensors of one shape");
  const auto dtype = c10::promoteTypes(x.scalar_type(), residual.scalar_type());
  return {x.to(dtype), residual.to(dtype)};
}

NormedRows norm_rows(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon) {
  const auto dtype = x.scalar_type();
  RmsNormForward work{
      .x = x.contiguous(), .weight = weight.to(dtype).contiguous(), .epsilon = epsilon};
  work.y = at::empty_like(work.x);
  const auto math = dtype == at::kDouble ? at::kDouble : at::kFloat;
  work.scale = at::empty({work.x.numel() / weight.numel()}, work.x.options().dtype(math));
  if (residual.defined()) {
    work.residual = residual.contiguous();
    work.sum = at::empty_like(work.x);
  }
  rms_norm_forward(work);
  return {residual.defined() ? work.sum : work.x, work.y, work.scale};
}

at::Tensor norm_rows_gradient(
    const NormedRows& rows,
    const at::Tensor& weight,
    const at::Tensor& y_gradient,
    const at::Tensor& sum_gradient,
    bool wants_weight,
    at::Tensor& weight_gradient) {
  RmsNormBackward work{
      .y_gradient = y_gradient.contiguous(),
      .sum = rows.sum,
      .weight = weight.to(rows.sum.scalar_type()).contiguous(),
      .scale = rows.scale,
      .gradient = at::empty_like(rows.sum)};
  if (sum_gradient.defined()) work.sum_gradient = sum_gradient.contiguous();
  if (wants_weight) {
    if (const auto target = gradient_target(weight)) {
      work.weight_gradient = target->buffer;
      work.add = !target->overwrite;
    } else {
      work.weight_gradient = weight_gradient = at::empty(weight.sizes(), weight.options());
    }
  }
  rms_norm_backward(work);
  return work.gradient;
}

}  // namespace sherd
