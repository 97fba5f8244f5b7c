// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "sherd/nn/functional.h"

namespace sherd {

/// Returns x and the residual, if it is defined, in the wider of their dtypes: under autocast one
/// may be narrower; the sum is not. Throws, naming the operation, for shapes and dtypes that an
/// RMSNorm of their sum does not fit.
std::pair<at::Tensor, std::optional<at::Tensor>> norm_inputs(
    const char* operation,
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm);

/// Rows of x + residual and their RMSNorm, for functions that recompute the norm in the backward
/// instead of keeping it: one more pass over [rows, dim] saves as much memory.
struct NormedRows {
  at::Tensor sum;
  at::Tensor y;
  at::Tensor scale;  ///< scale of each row, fp32
};
/// Computes them. If `residual` is undefined, the sum is x.
NormedRows norm_rows(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon);

/// Returns the gradient of the sum, from the gradient of y and `sum_gradient`, which reaches the
/// sum by other paths (may be undefined). If `wants_weight`, the weight's gradient is written to
/// its unit's buffer or, if it has none, to `weight_gradient`.
at::Tensor norm_rows_gradient(
    const NormedRows& rows,
    const at::Tensor& weight,
    const at::Tensor& y_gradient,
    const at::Tensor& sum_gradient,
    bool wants_weight,
    at::Tensor& weight_gradient);

}  // namespace sherd
