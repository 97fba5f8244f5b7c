// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// silu(gate) · up, from both packed in the last dim, gate first: [.., 2F] to [.., F]. In fp32,
/// rounded once. No second derivative.
///
/// For the backward it keeps gate_up: 4·F bytes a token with bf16. feed_forward.h keeps as much and
/// spares the next product its input.
SHERD_API at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace sherd
