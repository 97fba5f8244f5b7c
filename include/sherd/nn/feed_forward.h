// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// SwiGLU between two products: (silu(gate) · up) · downᵀ with gate and up the halves of
/// x · gate_upᵀ. x is [.., D], gate_up [2F, D] (the gate's rows first), down [D, F]. The weights'
/// gradients go where linear's go. No second derivative.
///
/// For the backward it keeps x and the product gate_up: with bf16, 2·D + 4·F bytes a token; the
/// activation (2·F bytes) is computed again while gate and up get their gradients. With
/// `redo_gate_up` it keeps x alone, 2·D bytes a token, and makes that product again.
SHERD_API at::Tensor feed_forward(
    const at::Tensor& x,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    bool redo_gate_up = false);

}  // namespace sherd
