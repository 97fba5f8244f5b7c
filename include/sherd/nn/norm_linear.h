// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "sherd/export.h"

namespace sherd {

/// How rows are normed before a product: rms_norm with this weight.
struct NormOptions {
  at::Tensor weight;
  double epsilon = 1e-5;
};

/// {sum, product} with sum = x + residual (or x, where the residual is undefined) and product =
/// rms_norm(sum) · weightᵀ. The gradients of weights go where linear's go. No second derivative.
///
/// For the backward it keeps the sum alone, which is the next one's residual: with bf16, 2·D bytes
/// a token. The norm is made again there, and its backward adds what reaches the sum by other ways.
SHERD_API std::tuple<at::Tensor, at::Tensor> norm_linear(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& weight);

struct FeedForwardOptions {
  /// The product gate_up is made again in the backward.
  bool redo_gate_up = false;
  /// The backward writes gate_up's gradient over it: there is only one.
  bool overwrites = false;
  /// Nobody reads the result, which has no values: only its backward is wanted. The product down is
  /// not made.
  bool skips_result = false;
};

/// {sum, result} with the same sum and result = feed_forward(rms_norm(sum)).
///
/// It keeps the sum and the product gate_up, with bf16 2·D + 4·F bytes a token; with
/// `redo_gate_up` the sum alone.
SHERD_API std::tuple<at::Tensor, at::Tensor> norm_feed_forward(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    const FeedForwardOptions& options = {});

}  // namespace sherd
