// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

// Rows [rows, 2F] of a gate and what it lets through, side by side, gate first. All tensors are
// dense and of one dtype, floating point of 16 bits or more. One pass each on the current stream;
// fp32 math, rounded once.

/// activation = silu(gate) · up, [rows, F].
void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& activation);

/// From the activation's gradient to that of gate and up. Where `activation` is defined, it is
/// computed again into it. Both outputs may lie where the inputs of their shapes do: d_gate_up over
/// gate_up, activation over d_activation.
void swiglu_backward(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const at::Tensor& d_gate_up,
    const at::Tensor& activation = {});

// In CUDA memory.
void swiglu_forward_on_cuda(const at::Tensor& gate_up, const at::Tensor& activation);
void swiglu_backward_on_cuda(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const at::Tensor& d_gate_up,
    const at::Tensor& activation);

}  // namespace sherd
