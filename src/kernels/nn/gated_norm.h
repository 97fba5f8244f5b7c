// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// The RMSNorm of x · silu(gate), over each of `groups` equal parts of a row. The gate has any
/// stride between rows; all else is dense.
struct GatedNorm {
  at::Tensor x;       ///< [T, D], floating point of 16 bits or more
  at::Tensor gate;    ///< [T, D], in the dtype of x
  at::Tensor weight;  ///< [D], fp32 (fp64 with fp64)
  double epsilon = 0;
  int64_t groups = 1;  ///< divides D
};

/// The gradients of a GatedNorm.
struct GatedNormGradients {
  at::Tensor x;       ///< [T, D], in its dtype; may be the gradient of y
  at::Tensor gate;    ///< [T, D], as strided as the gate may be
  at::Tensor weight;  ///< [D], in the weight's dtype
  at::Tensor y;       ///< [T, D]: the forward's result again; undefined: not wanted
};

// On the current stream; math in fp32 (fp64 with fp64), rounded once. On the meta device they
// allocate what they allocate elsewhere.

/// Writes y [T, D], which may be x.
void gated_norm_forward(const GatedNorm& norm, const at::Tensor& y);
/// From the gradient of y. The weight's gradient is a sum in the same order every time.
void gated_norm_backward(
    const GatedNorm& norm, const at::Tensor& y_gradient, const GatedNormGradients& result);

}  // namespace sherd
