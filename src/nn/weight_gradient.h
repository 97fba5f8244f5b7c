// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/autocast.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {

/// Sets the target to gradientᵀ · input, or adds that to it. Both are [rows, …] and of one dtype,
/// which may differ from the target's.
void write_weight_gradient(
    const GradientTarget& target, const at::Tensor& gradient, const at::Tensor& input);

/// The same for a weight: writes to its unit's buffer and returns an undefined tensor, or returns
/// the gradient if it has no unit.
at::Tensor weight_gradient(
    const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& input);

/// Throws in a backward that is itself recorded (create_graph), for operations that write gradients
/// themselves.
void refuse_second_derivative(const char* operation);

}  // namespace sherd
