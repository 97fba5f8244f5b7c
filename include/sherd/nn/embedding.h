// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "sherd/export.h"

namespace sherd {

/// weight[tokens]: a row of weight [V, D] for each token (int64, any shape). The weight's gradient
/// goes straight into its unit's buffer, summed in fp32 in the same order every time.
///
/// For the backward it keeps the tokens, 8 bytes each, and sorts them there. No second derivative.
SHERD_API at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens);

}  // namespace sherd
