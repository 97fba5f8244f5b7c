// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>

#include "kernels/widened.h"

namespace sherd {
// On CPU torch's own operations do it: their exponentials are vector code.

void swiglu_forward(const at::Tensor& gate_up, const at::Tensor& activation) {
  if (gate_up.is_meta()) return;
  if (gate_up.is_cuda()) return swiglu_forward_on_cuda(gate_up, activation);
  const auto halves = widened(gate_up).chunk(2, -1);
  activation.copy_(at::sigmoid(halves[0]).mul_(halves[0]).mul_(halves[1]));
}

void swiglu_backward(
    const at::Tensor& d_activation,
    const at::Tensor& gate_up,
    const at::Tensor& d_gate_up,
    const at::Tensor& activation) {
  if (gate_up.is_meta()) return;
  if (gate_up.is_cuda()) {
    return swiglu_backward_on_cuda(d_activation, gate_up, d_gate_up, activation);
  }
  const auto halves = widened(gate_up).chunk(2, -1);
  const auto& gate = halves[0];
  const auto& up = halves[1];
  const auto gradient = widened(d_activation);
  const auto open = at::sigmoid(gate);
  const auto silu = gate * open;
  const auto d_gate = (gradient * up).mul_(open).mul_((gate - silu).add_(1));
  const auto d_up = gradient * silu;
  const auto again = activation.defined() ? silu * up : at::Tensor();
  // Only now that all inputs are read: the outputs may lie where they do.
  const auto targets = d_gate_up.chunk(2, -1);
  targets[0].copy_(d_gate);
  targets[1].copy_(d_up);
  if (activation.defined()) activation.copy_(again);
}

}  // namespace sherd
