// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// Returns silu(gate) · up, with gate and up packed in the last dim, gate first: [.., 2F] to
/// [.., F]. Computed in fp32, rounded once. Second derivatives throw, and so do shapes and dtypes
/// that don't fit.
///
/// For the backward it keeps gate_up: with bf16, 4·F bytes a token. feed_forward() keeps no more,
/// and the following product does not have to keep its input.
SHERD_API at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace sherd
