// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim, I inner width, H heads, G groups, N state, C channels of
// the convolution.
#include "models/hybrid/mamba.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

#include <algorithm>

#include "models/blocks/feed_forward.h"
#include "models/hybrid/state_space.h"

namespace sherd {

MambaImpl::MambaImpl(int64_t dim, double norm_eps, const MambaOptions& options)
    : dim_(dim),
      options_(options),
      inner_(options.expand * dim),
      heads_(inner_ / options.head_dim),
      channels_(inner_ + 2 * options.groups * options.state) {
  input = register_module("input", plain_linear(dim, inner_ + channels_ + heads_));
  filter = register_parameter("filter", at::empty({channels_ * options.width}));
  filter_bias = register_parameter("filter_bias", at::empty({channels_}));
  decay_log = register_parameter("decay_log", at::empty({heads_}));
  step_bias = register_parameter("step_bias", at::empty({heads_}));
  through = register_parameter("through", at::empty({heads_}));
  norm = register_module("norm", RmsNorm(inner_, norm_eps));
  output = register_module("output", plain_linear(inner_, dim));
}

/// Each channel over its last `width` tokens.
at::Tensor MambaImpl::convolved(const at::Tensor& x_BSC) const {
  const auto before_BCS = at::constant_pad_nd(x_BSC.transpose(1, 2), {options_.width - 1, 0});
  const auto filter_C1W = filter.view({channels_, 1, options_.width}).to(x_BSC.scalar_type());
  return at::silu(at::conv1d(
                      before_BCS, filter_C1W, filter_bias.to(x_BSC.scalar_type()), /*stride=*/1,
                      /*padding=*/at::IntArrayRef{0}, /*dilation=*/1, /*groups=*/channels_))
      .transpose(1, 2);
}

at::Tensor MambaImpl::forward(const at::Tensor& x_BSD) {
  const int64_t keys = options_.groups * options_.state;
  const auto parts = input(x_BSD).split_with_sizes({inner_, channels_, heads_}, -1);
  const auto mixed = convolved(parts[1]).to(at::kFloat).split_with_sizes({inner_, keys, keys}, -1);
  const auto heads_apart = [](const at::Tensor& x, int64_t width) {
    return x.unflatten(-1, {-1, width});
  };
  StateSpaceInputs inputs;
  inputs.x_BSHP = heads_apart(mixed[0], options_.head_dim);
  inputs.step_BSH = at::softplus(parts[2].to(at::kFloat) + step_bias.to(at::kFloat));
  inputs.decay_H = -decay_log.to(at::kFloat).exp();
  inputs.write_BSGN = heads_apart(mixed[1], options_.state);
  inputs.read_BSGN = heads_apart(mixed[2], options_.state);
  const auto y_BSHP = state_space(inputs, std::min(options_.chunk, x_BSD.size(1))) +
                      inputs.x_BSHP * through.to(at::kFloat).unsqueeze(-1);
  const auto y_BSI = y_BSHP.flatten(2) * at::silu(parts[0].to(at::kFloat));
  return output(norm(y_BSI.to(x_BSD.scalar_type())));
}

double MambaImpl::flops_per_token(int64_t seq) const {
  // Scores and values within a chunk (half of it on average), the states written and read.
  const double within =
      product_flops(std::min(options_.chunk, seq), options_.state + options_.head_dim) / 2;
  const double across = 2 * product_flops(options_.head_dim, options_.state);
  return product_flops(dim_, inner_ + channels_ + heads_) + product_flops(inner_, dim_) +
         product_flops(channels_, options_.width) + static_cast<double>(heads_) * (within + across);
}

}  // namespace sherd
