// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sherd/export.h"

namespace sherd {

/// The treatment of the logits between forward and backward.
enum class HeadLogits : uint8_t {
  /// Recomputes them in the backward, chunk by chunk: one more product with the weight. Keeps x,
  /// the targets and 4 bytes a token.
  redo,
  /// Computes them all in the forward, replaces them by their gradients, and keeps these in x's
  /// dtype: with bf16, 2·V bytes a token (2.1 GB for 8192 tokens and a vocabulary of 128256).
  keep,
};

/// Options of linear_cross_entropy.
struct HeadOptions {
  HeadLogits logits = HeadLogits::redo;
  /// HeadLogits::redo: number of rows whose logits are computed at a time, in x's dtype. Each chunk
  /// of the backward reads and writes the whole weight gradient once, so large chunks save traffic.
  int64_t chunk_rows = 2048;
};

/// Returns the sum over rows of the cross entropy of the logits x · weightᵀ, in fp32. x is [T, D],
/// weight [V, D], targets [T] in int64; rows with a negative target are ignored. Loss and gradients
/// of logits are computed in fp32 (fp64 for fp64 input). The weight's gradient is written as by
/// linear(), with the same bits every time. Never blocks for the device. Second derivatives throw,
/// and so do shapes and dtypes that don't fit.
SHERD_API at::Tensor linear_cross_entropy(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const HeadOptions& options = {});

}  // namespace sherd
