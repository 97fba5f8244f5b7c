// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// Returns weight[tokens]: a row of weight [V, D] for each token (int64, any shape). In a unit's
/// backward the weight's gradient is written straight into the unit's buffer, summed in fp32 in
/// the same order every time. Second derivatives throw.
///
/// For the backward it keeps the tokens, 8 bytes each.
SHERD_API at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens);

}  // namespace sherd
