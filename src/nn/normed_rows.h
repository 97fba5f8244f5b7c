// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// Rows of x + residual and their norm, as functions have it that make the norm again in the
/// backward instead of keeping it: one pass over [rows, dim] against as much memory.
struct NormedRows {
  at::Tensor sum;
  at::Tensor y;
  at::Tensor scale;  ///< of each row, fp32
};
/// `residual` may be undefined: then the sum is x.
NormedRows norm_rows(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon);

/// The gradient of the sum, from that of y and what reaches the sum by other ways (maybe
/// undefined). The weight's gradient goes where its unit wants it, else to `weight_gradient`, if
/// it is wanted at all.
at::Tensor norm_rows_gradient(
    const NormedRows& rows,
    const at::Tensor& weight,
    const at::Tensor& y_gradient,
    const at::Tensor& sum_gradient,
    bool wants_weight,
    at::Tensor& weight_gradient);

}  // namespace sherd
