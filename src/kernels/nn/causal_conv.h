// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// A convolution of each channel with its last `width` positions, before a SiLU. x has any strides
/// between sequences and between positions; its channels are dense.
struct CausalConv {
  at::Tensor x;       ///< [B, S, C], floating point of 16 bits or more
  at::Tensor filter;  ///< [C, width], fp32 (fp64 with fp64); the last is for the position itself
  at::Tensor bias;    ///< [C], in the filter's dtype
};

/// The gradients of a CausalConv.
struct CausalConvGradients {
  at::Tensor x;       ///< [B, S, C], as strided as x may be, in its dtype
  at::Tensor filter;  ///< [C, width], in the filter's dtype
  at::Tensor bias;    ///< [C]
};

constexpr int64_t kMostConvWidth = 8;  // positions that a filter covers, at most

// On the current stream; math in fp32 (fp64 with fp64), rounded once. On the meta device they
// allocate what they allocate elsewhere.

/// y[b, s] = silu(bias + Σ filter[i] · x[b, s + i − (width − 1)]), with zeros before the first
/// position. y is dense.
void causal_conv_forward(const CausalConv& conv, const at::Tensor& y);
/// From the gradient of y, which is dense. Computes the sum before the SiLU again. The filter's
/// gradients are sums in the same order every time.
void causal_conv_backward(
    const CausalConv& conv, const at::Tensor& y_gradient, const CausalConvGradients& result);

}  // namespace sherd
