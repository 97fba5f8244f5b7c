// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// Returns a SwiGLU feed-forward: (silu(gate) · up) · downᵀ, where gate and up are the halves of
/// x · gate_upᵀ. x is [.., D], gate_up [2F, D] (the gate's rows first), down [D, F]. The weights'
/// gradients are written as by linear(). Second derivatives throw, and so do shapes and dtypes that
/// don't fit.
///
/// For the backward it keeps x and the product x · gate_upᵀ: with bf16, 2·D + 4·F bytes a token.
/// The activation is always recomputed. With `redo_gate_up` it keeps x alone, 2·D bytes a token,
/// and recomputes that product too.
SHERD_API at::Tensor feed_forward(
    const at::Tensor& x,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    bool redo_gate_up = false);

}  // namespace sherd
