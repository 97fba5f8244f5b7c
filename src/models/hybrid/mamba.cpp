// SPDX-License-Identifier: Apache-2.0
#include "models/hybrid/mamba.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "models/blocks/feed_forward.h"

namespace sherd {
namespace {

MambaShape shape_of(int64_t dim, double norm_eps, const MambaOptions& options) {
  MambaShape shape;
  shape.heads = options.expand * dim / options.head_dim;
  shape.head_dim = options.head_dim;
  shape.groups = options.groups;
  shape.state = options.state;
  shape.width = options.width;
  // Larger ones change no result, but on a GPU only chunks of 128 have kernels.
  shape.chunk = std::min<int64_t>(options.chunk, 128);
  shape.norm_epsilon = norm_eps;
  return shape;
}

}  // namespace

MambaImpl::MambaImpl(
    int64_t dim,
    double norm_eps,
    const MambaOptions& options,
    bool recomputes,
    const SequenceRanks& ranks)
    : dim_(dim),
      shape_(shape_of(dim, norm_eps, options)),
      recomputes_(recomputes),
      ranks_{ranks.context, ranks.tensor} {
  const int64_t count = ranks.size(), groups = shape_.groups;
  TORCH_CHECK_VALUE(
      shape_.heads % count == 0 && (groups % count == 0 || count % groups == 0),
      "[models.hybrid] a Mamba-2 with ", shape_.heads, " heads in ", groups, " groups on ", count,
      " ranks along 'cp' and 'tp': the ranks must divide the heads, and the ranks or the groups "
      "the others; use other numbers of ranks");
  const int64_t inner = shape_.inner(), channels = shape_.channels(), heads = shape_.heads;
  input = register_module("input", plain_linear(dim, inner + channels + heads));
  filter = register_parameter("filter", at::empty({channels * options.width}));
  filter_bias = register_parameter("filter_bias", at::empty({channels}));
  decay_log = register_parameter("decay_log", at::empty({heads}));
  step_bias = register_parameter("step_bias", at::empty({heads}));
  through = register_parameter("through", at::empty({heads}));
  norm = register_module("norm", RmsNorm(inner, norm_eps));
  output = register_module("output", plain_linear(inner, dim));
}

at::Tensor MambaImpl::forward(const at::Tensor& x_BSD, const RmsNorm& before) {
  const auto [sum_BSD, packed_BSF] =
      norm_linear(x_BSD, {}, {before->weight, before->epsilon}, input->weight);
  const MambaParameters parameters{
      .filter = filter,
      .filter_bias = filter_bias,
      .step_bias = step_bias,
      .decay_log = decay_log,
      .through = through,
      .norm_weight = norm->weight,
      .output = output->weight};
  return sum_BSD + shared_mamba_mixer(packed_BSF, parameters, shape_, ranks_, recomputes_);
}

double MambaImpl::flops_per_token(int64_t seq) const {
  // Scores and values within a chunk (half of it on average), the states written and read.
  const int64_t inner = shape_.inner(), channels = shape_.channels();
  const double within =
      product_flops(std::min(shape_.chunk, seq), shape_.state + shape_.head_dim) / 2;
  const double across = 2 * product_flops(shape_.head_dim, shape_.state);
  return product_flops(dim_, inner + channels + shape_.heads) + product_flops(inner, dim_) +
         product_flops(channels, shape_.width) +
         static_cast<double>(shape_.heads) * (within + across);
}

double MambaImpl::recomputed_flops_per_token() const {
  return product_flops(shape_.channels(), shape_.width);
}

}  // namespace sherd
