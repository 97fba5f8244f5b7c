// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "sherd/export.h"

namespace sherd {

/// The RMSNorm before a product.
struct NormOptions {
  at::Tensor weight;      ///< [D]
  double epsilon = 1e-5;  ///< added to the mean square
};

/// Returns {sum, product}: sum = x + residual (x, if the residual is undefined) and product =
/// rms_norm(sum) · weightᵀ, with weight [F, D]. Use the sum as the next operation's residual; its
/// other gradients are added in the same backward. The weights' gradients are written as by
/// linear(). Second derivatives throw, and so do shapes and dtypes that don't fit.
///
/// For the backward it keeps the sum alone, with bf16 2·D bytes a token, and recomputes the norm.
SHERD_API std::tuple<at::Tensor, at::Tensor> norm_linear(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& weight);

/// Options of norm_feed_forward.
struct FeedForwardOptions {
  /// Recomputes the product with gate_up in the backward instead of keeping it.
  bool redo_gate_up = false;
  /// Lets the backward overwrite the product with gate_up by its gradient, which saves memory. Only
  /// for graphs that run backward once.
  bool overwrites = false;
  /// Leaves the result without values and skips the product with down, for a recompute whose result
  /// is not used: only its backward runs.
  bool skips_result = false;
};

/// Returns {sum, result}: the same sum as norm_linear() and result = feed_forward(rms_norm(sum)).
/// Gradients and errors are as there.
///
/// For the backward it keeps the sum and the product with gate_up, with bf16 2·D + 4·F bytes a
/// token; with `redo_gate_up` the sum alone.
SHERD_API std::tuple<at::Tensor, at::Tensor> norm_feed_forward(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    const FeedForwardOptions& options = {});

}  // namespace sherd
