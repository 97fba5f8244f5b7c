// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "sherd/export.h"

namespace sherd {

// RMSNorm over the last dim, computed in fp32 (fp64 for fp64 input) and rounded once. The weight's
// gradient is written as by linear(), added up in the same order every time. Second derivatives
// throw, and so do shapes and dtypes that don't fit.

/// Returns x / √(mean(x²) + epsilon) · weight, with weight [D].
///
/// For the backward it keeps x, the weight and 4 bytes a row: with bf16, 2·D + 4 bytes a token. x
/// is often kept by other operations anyway.
SHERD_API at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// Returns {sum, y}: sum = x + residual in the wider of their dtypes, and y = rms_norm(sum), in one
/// kernel. The backward is one kernel too, and adds the sum's other gradients.
///
/// For the backward it keeps the sum (neither x nor residual), the weight and 4 bytes a row: with
/// bf16, 2·D + 4 bytes a token.
SHERD_API std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon);

}  // namespace sherd
