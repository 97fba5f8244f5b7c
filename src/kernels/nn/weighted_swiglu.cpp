// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/weighted_swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>

#include "kernels/widened.h"

namespace sherd {
// On CPU torch's own operations do it: their exponentials are vector code.

void weighted_swiglu_forward(
    const at::Tensor& gate_up, const at::Tensor& weight, const at::Tensor& activation) {
  if (gate_up.is_meta()) return;
  if (gate_up.is_cuda()) return weighted_swiglu_forward_on_cuda(gate_up, weight, activation);
  const auto halves = widened(gate_up).chunk(2, -1);
  activation.copy_(
      at::sigmoid(halves[0]).mul_(halves[0]).mul_(halves[1]).mul_(weight.unsqueeze(1)));
}

void weighted_swiglu_backward(const WeightedSwigluBackward& work) {
  if (work.gate_up.is_meta()) return;
  if (work.gate_up.is_cuda()) return weighted_swiglu_backward_on_cuda(work);
  const auto halves = widened(work.gate_up).chunk(2, -1);
  const auto& gate = halves[0];
  const auto& up = halves[1];
  const auto weight = work.weight.unsqueeze(1);
  const auto gradient = widened(work.d_activation);
  const auto open = at::sigmoid(gate);
  const auto silu = gate * open;
  const auto activation = silu * up;
  work.d_weight.copy_((activation * gradient).sum(1));
  const auto weighted = gradient * weight;
  const auto d_gate = (weighted * up).mul_(open).mul_((gate - silu).add_(1));
  const auto d_up = weighted * silu;
  // Only now that all inputs are read: the outputs may lie where they do.
  const auto targets = work.d_gate_up.chunk(2, -1);
  targets[0].copy_(d_gate);
  targets[1].copy_(d_up);
  work.d_activation.copy_(activation * weight);
}

}  // namespace sherd
