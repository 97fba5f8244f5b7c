// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "sherd/export.h"
#include "sherd/shard/module.h"

namespace sherd {

/// Returns input · weightᵀ + bias: input is [.., D], weight [F, D], bias [F] or undefined. Keeps
/// input and weight for the backward. In a unit's backward the weight's gradient is written, or
/// added, straight into the unit's buffer, in that buffer's dtype: the slot of full gradients if
/// gradients are sharded, else the main gradient; call that backward without create_graph. If the
/// weight belongs to no unit, its gradient is returned to autograd as usual.
SHERD_API at::Tensor linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {});

/// torch::nn::Linear with the backward of sherd::linear.
struct SHERD_API LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input);
};
SHERD_MODULE(Linear);

}  // namespace sherd
