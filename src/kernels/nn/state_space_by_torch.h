// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/nn/state_space.h"

namespace sherd {

// The same out of torch's operations, for any device, dtype and sizes.
void state_space_forward_by_torch(
    const StateSpace& space, const at::Tensor& y, const at::Tensor& states);
void state_space_backward_by_torch(
    const StateSpace& space,
    const at::Tensor& states,
    const at::Tensor& y_gradient,
    const StateSpaceGradients& result);

}  // namespace sherd
