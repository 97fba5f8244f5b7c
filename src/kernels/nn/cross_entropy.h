// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

// Logits [rows, vocab] are dense, floating point of 16 bits or more. Targets [rows] are int64; rows
// with one below 0 have no loss and no gradient. Losses and log_sums [rows] are fp32 (fp64 with
// fp64). All math is, too. On the current stream.

/// losses = log_sums − the target's logit, with log_sums = log Σ exp(logits). If asked, the logits
/// become their gradients: softmax − one-hot.
void cross_entropy_forward(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& losses,
    const at::Tensor& log_sums,
    bool into_gradients);

/// The logits become their gradients, times `factor`: one number on the logits' device, in the
/// dtype of the log_sums, which the forward found.
void cross_entropy_backward(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& log_sums,
    const at::Tensor& factor);

// In CUDA memory.
void cross_entropy_forward_on_cuda(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& losses,
    const at::Tensor& log_sums,
    bool into_gradients);
void cross_entropy_backward_on_cuda(
    const at::Tensor& logits,
    const at::Tensor& targets,
    const at::Tensor& log_sums,
    const at::Tensor& factor);

}  // namespace sherd
