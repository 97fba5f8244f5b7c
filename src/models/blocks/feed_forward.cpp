// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/feed_forward.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

#include "sherd/nn/functional.h"
#include "sherd/nn/recompute.h"

namespace sherd {

Linear plain_linear(int64_t in, int64_t out) {
  return Linear(torch::nn::LinearOptions(in, out).bias(false));
}

double product_flops(int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(in) * static_cast<double>(out);
}

FeedForwardImpl::FeedForwardImpl(
    int64_t dim, int64_t ffn, bool recomputes, bool ends_recompute, std::optional<Exchange> ranks)
    : dim_(dim),
      ffn_(ffn),
      recomputes_(recomputes),
      ends_recompute_(ends_recompute),
      ranks_(std::move(ranks)) {
  const int64_t parts = ranks_ ? ranks_->size() : 1, width = ffn / parts;
  TORCH_CHECK_VALUE(
      ffn % parts == 0, "[models] a feed-forward of width ", ffn, " on ", parts,
      " ranks along 'tp': the ranks must divide the width; use fewer of them");
  gate_up = register_module("gate_up", plain_linear(dim, 2 * width));
  down = register_module("down", plain_linear(width, dim));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x_BSD) {
  const auto rows_BSD = ranks_ ? ranks_->gather_rows(x_BSD, 1) : x_BSD;
  const auto y_BSD = sherd::feed_forward(rows_BSD, gate_up->weight, down->weight, recomputes_);
  return ranks_ ? ranks_->scatter_sum(y_BSD, 1) : y_BSD;
}

at::Tensor FeedForwardImpl::forward_residual(
    const at::Tensor& x_BSD, const at::Tensor& residual_BSD, const RmsNorm& norm) {
  FeedForwardOptions options{.recompute_gate_up = recomputes_, .adds_sum = true};
  if (recomputing() && c10::GradMode::is_enabled()) {  // its graph is for one backward
    options.overwrites = true;
    options.skips_result = ends_recompute_;
  }
  return std::get<1>(norm_feed_forward(
      x_BSD, residual_BSD, {norm->weight, norm->epsilon, ranks_}, gate_up->weight, down->weight,
      options));
}

double FeedForwardImpl::flops_per_token() const {
  return 3 * product_flops(dim_, ffn_);
}

double FeedForwardImpl::recomputed_flops_per_token() const {
  return product_flops(dim_, 2 * ffn_);
}

}  // namespace sherd
