// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

// A SwiGLU (swiglu.h) whose rows are multiplied by a weight each: what a router gives an expert's
// row. All tensors are dense; gate_up, the activation and their gradients are of one dtype,
// floating point of 16 bits or more, weights and their gradients fp32 (fp64 with fp64). One pass
// each on the current stream; fp32 math, rounded once. No effect on the meta device.

/// activation = weight · silu(gate) · up: [R, 2F] and [R] give [R, F].
void weighted_swiglu_forward(
    const at::Tensor& gate_up, const at::Tensor& weight, const at::Tensor& activation);

/// The gradients of a weighted SwiGLU.
struct WeightedSwigluBackward {
  at::Tensor gate_up{};       ///< [R, 2F]
  at::Tensor weight{};        ///< [R]
  at::Tensor d_activation{};  ///< [R, F]; replaced by the activation, computed again
  at::Tensor d_gate_up{};     ///< [R, 2F]; may be gate_up itself
  at::Tensor d_weight{};      ///< [R], summed in the same order every time
};
/// Computes them.
void weighted_swiglu_backward(const WeightedSwigluBackward& work);

// In CUDA memory.
void weighted_swiglu_forward_on_cuda(
    const at::Tensor& gate_up, const at::Tensor& weight, const at::Tensor& activation);
void weighted_swiglu_backward_on_cuda(const WeightedSwigluBackward& work);

}  // namespace sherd
