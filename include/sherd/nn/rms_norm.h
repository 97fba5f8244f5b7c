// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "sherd/export.h"

namespace sherd {

// Over the last dim, in fp32, rounded once. The weight's gradient goes straight into its unit's
// buffer, as linear's does, in the same order of addition every time. No second derivative.

/// y = x / √(mean(x²) + epsilon) · weight.
///
/// For the backward it keeps x, the weight and 4 bytes a row: with bf16, 2·D + 4 bytes a token, of
/// which x is often kept anyway.
SHERD_API at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// {sum, y} with sum = x + residual in their dtype and y = rms_norm(sum), in one pass. The backward
/// is one pass, too, and adds what reaches the sum by other ways.
///
/// Keeps the sum (neither x nor residual), the weight and 4 bytes a row: 2·D + 4 bytes a token with
/// bf16.
SHERD_API std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon);

}  // namespace sherd
