// SPDX-License-Identifier: Apache-2.0
// Shapes as in the header; K chunks.
#include "kernels/nn/state_space.h"

#include <ATen/ops/empty.h>

#include "kernels/nn/in_vectors.h"
#include "kernels/nn/mamba_device.h"
#include "kernels/nn/mamba_on_cuda.h"
#include "kernels/nn/state_space_by_torch.h"

namespace sherd {
namespace {

/// Whether the kernels of mamba_device.h can do it.
bool has_kernels(const StateSpace& space) {
  const int64_t state = space.write.size(3);
  const bool chunks =
      space.chunk == kSpaceChunk || (space.chunk < kSpaceChunk && space.chunks() == 1);
  return in_vectors(space.x) && in_vectors(space.write) && in_vectors(space.read) && chunks &&
         space.x.size(3) == kSpaceDims && (state == 64 || state == 128);
}

StateSpaceTimes times_of(const StateSpace& space) {
  const auto made = [&] {
    return at::empty(
        {space.x.size(0), space.x.size(2), space.chunks() * kSpaceChunk}, space.through.options());
  };
  return {made(), made()};
}

}  // namespace

void state_space_forward(const StateSpace& space, const at::Tensor& y, const at::Tensor& states) {
  if (!has_kernels(space)) return state_space_forward_by_torch(space, y, states);
  const auto times = times_of(space);
  if (!y.is_meta()) state_space_forward_on_cuda(space, times, y, states);
}

void state_space_backward(
    const StateSpace& space,
    const at::Tensor& states,
    const at::Tensor& y_gradient,
    const StateSpaceGradients& result) {
  if (!has_kernels(space) || !in_vectors(y_gradient) || !in_vectors(result.x) ||
      !in_vectors(result.write) || !in_vectors(result.read)) {
    return state_space_backward_by_torch(space, states, y_gradient, result);
  }
  const auto times = times_of(space);
  const auto wide = space.through.options();
  const StateSpaceScratch scratch{
      at::empty(states.sizes(), states.options()), at::empty(space.write.sizes(), wide),
      at::empty(space.read.sizes(), wide),
      at::empty({space.x.size(0) * space.chunks(), 3, space.x.size(2)}, wide)};
  if (!y_gradient.is_meta()) {
    state_space_backward_on_cuda(space, times, states, y_gradient, scratch, result);
  }
  const auto sums = scratch.sums.sum(0);
  result.step_bias.copy_(sums[0]);
  result.decay_log.copy_(sums[1]);
  result.through.copy_(sums[2]);
}

}  // namespace sherd
