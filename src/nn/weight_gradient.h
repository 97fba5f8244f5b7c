// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/autocast.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {

/// Target = gradientᵀ · input, or that much more. Both are [rows, …] and of one dtype; the target's
/// may be another.
void write_weight_gradient(
    const GradientTarget& target, const at::Tensor& gradient, const at::Tensor& input);

/// The same for a product's weight: where its unit wants it, or returned if it is no unit's.
at::Tensor weight_gradient(
    const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& input);

/// Throws in a backward that is itself recorded, for what writes its gradients by hand.
void refuse_second_derivative(const char* operation);

}  // namespace sherd
