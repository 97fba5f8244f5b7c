// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/fp8/encode.h"

namespace sherd {

// Operations of a transformer whose results are encoded at once, with the scaling `row`, so that
// they are never written in 16 bits. Math in fp32, rounded to e4m3 alone. One kernel each on the
// current stream, but for the last. On the meta device they allocate what they would elsewhere.

/// The RMSNorm of rows, encoded.
struct NormedFp8 {
  at::Tensor sum;    ///< what was normed
  at::Tensor scale;  ///< [rows]: 1 / √(mean(sum²) + epsilon), fp32
  Fp8Matrix rows;    ///< sum · scale · weight
};
/// Norms the rows of sum = x + residual (x, if the residual is undefined): [rows, dim], dense, in
/// 16 bits or fp32. The weight has the dtype of x.
NormedFp8 encode_normed(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon);
/// encode_input_again() of the same norm's result.
Fp8Matrix encode_normed_again(
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& scale,
    const Fp8Gradient& gradient);

/// encode_rows() of silu(gate) · up, with gate and up packed: [rows, 2F] to [rows, F].
Fp8Matrix encode_swiglu(const at::Tensor& gate_up);

/// The gradients around a SwiGLU.
struct SwigluGradients {
  Fp8Gradient gate_up;   ///< encode_gradient() of the gradient of gate and up
  Fp8Matrix activation;  ///< encode_input_again() of the activation, recomputed
};
/// From the activation's gradient [rows, F]. `gradient` is that of the product that has the
/// activation as its input, `input_scales` are those of the input of the product that gave gate_up.
/// Two kernels: the first finds the rows' scales.
SwigluGradients encode_swiglu_gradients(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const Fp8Gradient& gradient,
    const at::Tensor& input_scales);

// In CUDA memory: the same into tensors that are allocated. `sum` is not written if there is no
// residual.
void encode_normed_on_cuda(
    const at::Tensor& x,
    const at::Tensor& residual,
    const at::Tensor& weight,
    double epsilon,
    const NormedFp8& result);
void encode_normed_again_on_cuda(
    const at::Tensor& sum,
    const at::Tensor& weight,
    const at::Tensor& scale,
    const Fp8Gradient& gradient,
    const Fp8Matrix& result);
void encode_swiglu_on_cuda(const at::Tensor& gate_up, const Fp8Matrix& result);
void encode_swiglu_gradients_on_cuda(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const Fp8Gradient& gradient,
    const at::Tensor& input_scales,
    const SwigluGradients& result);

}  // namespace sherd
