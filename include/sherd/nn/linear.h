// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include "sherd/export.h"
#include "sherd/shard/module.h"

namespace sherd {

/// x · weightᵀ + bias. In the backward of a unit the weight's gradient is written straight into the
/// unit's buffer (the slot where gradients are sharded, else the main gradient), in its dtype.
SHERD_API at::Tensor linear(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {});

/// torch's Linear with such a backward.
struct SHERD_API LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input);
};
SHERD_MODULE(Linear);

}  // namespace sherd
