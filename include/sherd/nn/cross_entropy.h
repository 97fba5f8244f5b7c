// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sherd/export.h"

namespace sherd {

/// What becomes of the logits between forward and backward.
enum class HeadLogits : uint8_t {
  /// The backward makes them again, chunk by chunk: one more product of the head. Kept, beside x:
  /// 4 bytes a token, and targets.
  redo,
  /// The forward makes them at once and turns them into their gradients, which are kept in x's
  /// dtype: with bf16, 2·V bytes a token (2.1 GB for 8192 tokens and a vocabulary of 128256).
  keep,
};

struct HeadOptions {
  HeadLogits logits = HeadLogits::redo;
  /// Of HeadLogits::redo: rows whose logits exist at a time, in x's dtype. Each chunk of the
  /// backward reads and writes the whole gradient of the weight once: large ones save that traffic.
  int64_t chunk_rows = 2048;
};

/// The sum of the rows' cross entropies, fp32: of logits x · weightᵀ, x [T, D], weight [V, D], with
/// targets [T] (int64); a target below 0 counts for nothing. Loss and gradients of logits are
/// worked out in fp32. The weight's gradient goes where linear's goes, the same digits every time.
/// No second derivative. Never waits for the device.
SHERD_API at::Tensor linear_cross_entropy(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const HeadOptions& options = {});

}  // namespace sherd
