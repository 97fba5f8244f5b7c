// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// The inputs of a state space, all fp32: B sequences, S positions, H heads of P dims, G groups of
/// heads (the first H / G are the first group), N numbers of state per dim.
struct StateSpaceInputs {
  at::Tensor x_BSHP;
  at::Tensor step_BSH;  ///< above 0: weight of a token, and how fast the state decays at it
  at::Tensor decay_H;   ///< below 0
  at::Tensor write_BSGN;
  at::Tensor read_BSGN;
};

/// Returns y_BSHP of this recurrence, for each sequence and head, from state_PN = 0 on:
///   state = exp(step · decay) · state + step · x ⊗ write,  y = state · read,
/// computed as matrices of `chunk` positions each and one recurrence over the chunks.
at::Tensor state_space(const StateSpaceInputs& inputs, int64_t chunk);

}  // namespace sherd
