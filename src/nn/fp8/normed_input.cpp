// SPDX-License-Identifier: Apache-2.0
#include "nn/fp8/normed_input.h"

namespace sherd {
namespace {

at::Tensor norm_weight_like(const at::Tensor& norm_weight, const at::Tensor& x) {
  return norm_weight.to(x.scalar_type()).contiguous();
}

}  // namespace

NormedInput NormedInput::make(
    const Fp8Weight& weight,
    const at::Tensor& x,
    const at::Tensor& residual,
    const at::Tensor& norm_weight,
    double epsilon) {
  NormedInput result;
  if (!norm_weight.defined()) {
    result.rows.sum = x;
    result.encoded = fp8_input(weight, x);
  } else if (has_row_scales(weight.recipe)) {
    auto normed = encode_normed(
        x.contiguous(), residual.defined() ? residual.contiguous() : residual,
        norm_weight_like(norm_weight, x), epsilon);
    result.rows = {normed.sum, {}, normed.scale};
    result.encoded = std::move(normed.rows);
  } else {
    result.rows = norm_rows(x, residual, norm_weight, epsilon);
    result.encoded = fp8_input(weight, result.rows.y);
    result.rows.y.reset();
  }
  return result;
}

at::Tensor normed_weight_gradient(
    const at::Tensor& parameter,
    const Fp8Weight& weight,
    const Fp8ProductGradient& gradient,
    const NormedRows& rows,
    const at::Tensor& norm_weight,
    double epsilon) {
  if (!norm_weight.defined()) return fp8_weight_gradient(parameter, weight, gradient, rows.sum);
  if (weight.recipe == Fp8::rows) {
    return fp8_weight_gradient(
        parameter, weight, gradient.encoded.columns,
        encode_normed_again(
            rows.sum, norm_weight_like(norm_weight, rows.sum), rows.scale, gradient.encoded));
  }
  const auto again = norm_rows(rows.sum, {}, norm_weight, epsilon);
  return fp8_weight_gradient(parameter, weight, gradient, again.y);
}

}  // namespace sherd
