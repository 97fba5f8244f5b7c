// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// The decisions of a router: K of E experts for each of T tokens. The R = T · K rows that experts
/// compute are sorted by expert, those of one expert by token. Integers are int32; numbers are fp32
/// (fp64 for fp64 logits).
struct Routing {
  at::Tensor chances_TE;  ///< softmax of the logits
  at::Tensor chosen_TK;   ///< each token's experts, the most likely first
  at::Tensor row_TK;      ///< where the rows of each token are among the sorted ones
  at::Tensor token_R;     ///< token of each sorted row
  at::Tensor weight_R;    ///< weight of each sorted row
  at::Tensor end_E;       ///< one past each expert's last row
  bool normed = true;     ///< a token's weights are its chances over their sum; else its chances
};

// All are made of torch's operations, on the current stream, and never block for the device. Their
// results have the same bits every time.

/// Routes tokens by logits_TE, in fp32 or fp64. `normed`: as Routing::normed.
Routing route(const at::Tensor& logits_TE, int64_t top_k, bool normed = true);

/// Returns the rows that each expert has in each sequence, [B, E], over their mean over all
/// experts. T = B · S tokens are B sequences one after another.
at::Tensor expert_loads(const Routing& routing, int64_t sequences);

/// Returns the load-balancing loss: the sum over sequences and experts of an expert's load times
/// the sum of its chances. It is 1 a token where all loads are equal.
at::Tensor balance_loss(const Routing& routing, const at::Tensor& loads_BE);

/// Returns the gradient of the logits. Either of the others may be undefined: the gradients of
/// weight_R and of balance_loss(), whose loads are needed with it alone.
at::Tensor routing_gradient(
    const Routing& routing,
    const at::Tensor& d_weight_R,
    const at::Tensor& d_balance,
    const at::Tensor& loads_BE);

}  // namespace sherd
