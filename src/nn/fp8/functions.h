// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>

#include "shard/fp8_weight.h"
#include "sherd/nn/functional.h"

namespace sherd {

// linear(), norm_linear(), feed_forward() and norm_feed_forward() for weights in fp8. They call
// these with checked arguments.

at::Tensor fp8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

std::tuple<at::Tensor, at::Tensor> fp8_norm_linear(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& weight);

/// Without a norm, whose weight is then undefined, `residual` is as well, and the sum is x.
std::tuple<at::Tensor, at::Tensor> fp8_feed_forward(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    const FeedForwardOptions& options);

/// Throws, naming the operation, unless both weights of a feed-forward are in fp8, or none is.
/// Returns whether both are.
bool are_both_fp8(
    const char* operation, const at::Tensor& gate_up_weight, const at::Tensor& down_weight);

}  // namespace sherd
