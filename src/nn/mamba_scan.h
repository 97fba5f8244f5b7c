// SPDX-License-Identifier: Apache-2.0
// Shapes as in mamba.cpp.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "kernels/nn/causal_conv.h"
#include "kernels/nn/state_space.h"
#include "nn/weight_gradient.h"
#include "sherd/nn/functional.h"

namespace sherd {

/// The parts of what the convolution returns, or of its gradient.
struct MambaMixed {
  at::Tensor x_BSHP, write_BSGN, read_BSGN;
  MambaMixed(const at::Tensor& conv_BSC, const MambaShape& shape) {
    const int64_t inner = shape.inner(), keys = shape.groups * shape.state;
    const auto part = [&](int64_t first, int64_t count, int64_t heads) {
      return conv_BSC.narrow(-1, first, count).unflatten(-1, {heads, -1});
    };
    x_BSHP = part(0, inner, shape.heads);
    write_BSGN = part(inner, keys, shape.groups);
    read_BSGN = part(inner + keys, keys, shape.groups);
  }
};

/// The convolution and the state space of a Mamba-2. Parameters are in the dtype of the math.
struct MambaScan {
  MambaShape shape;
  at::Tensor channels_BSC, step_BSH;
  at::Tensor filter, filter_bias, step_bias, decay_log, through;

  CausalConv conv() const {
    return {channels_BSC, filter.view({shape.channels(), shape.width}), filter_bias};
  }
  at::Tensor convolved() const {
    auto result = at::empty(channels_BSC.sizes(), channels_BSC.options());
    causal_conv_forward(conv(), result);
    return result;
  }
  StateSpace space(const at::Tensor& conv_BSC) const {
    const MambaMixed mixed(conv_BSC, shape);
    return {mixed.x_BSHP, step_BSH,  mixed.write_BSGN, mixed.read_BSGN,
            step_bias,    decay_log, through,          chunk()};
  }

 private:
  int64_t chunk() const {
    return std::min(shape.chunk, std::max<int64_t>(channels_BSC.size(1), 1));
  }
};

/// Throws, naming the operation, for shapes and dtypes that don't fit.
void check_mamba(
    const char* operation,
    const at::Tensor& packed,
    const MambaParameters& all,
    const MambaShape& shape);

/// Gives a small parameter's gradient to its unit's buffer, or returns it if it has none.
inline at::Tensor delivered(const at::Tensor& parameter, const at::Tensor& gradient) {
  const auto target = gradient_target(parameter);
  if (!target) return gradient.view(parameter.sizes()).to(parameter.scalar_type());
  const auto values = gradient.view(target->buffer.sizes());
  target->overwrite ? target->buffer.copy_(values) : target->buffer.add_(values);
  return {};
}

}  // namespace sherd
