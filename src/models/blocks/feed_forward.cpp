// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/feed_forward.h"

#include <c10/core/GradMode.h>

#include "sherd/nn/functional.h"
#include "sherd/nn/recompute.h"

namespace sherd {

Linear plain_linear(int64_t in, int64_t out) {
  return Linear(torch::nn::LinearOptions(in, out).bias(false));
}

double product_flops(int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(in) * static_cast<double>(out);
}

FeedForwardImpl::FeedForwardImpl(int64_t dim, int64_t ffn, bool recomputes, bool ends_recompute)
    : dim_(dim), ffn_(ffn), recomputes_(recomputes), ends_recompute_(ends_recompute) {
  gate_up = register_module("gate_up", plain_linear(dim, 2 * ffn));
  down = register_module("down", plain_linear(ffn, dim));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x_BSD) {
  return sherd::feed_forward(x_BSD, gate_up->weight, down->weight, recomputes_);
}

at::Tensor FeedForwardImpl::forward_residual(
    const at::Tensor& x_BSD, const at::Tensor& residual_BSD, const RmsNorm& norm) {
  FeedForwardOptions options{.recompute_gate_up = recomputes_, .adds_sum = true};
  if (recomputing() && c10::GradMode::is_enabled()) {  // its graph is for one backward
    options.overwrites = true;
    options.skips_result = ends_recompute_;
  }
  return std::get<1>(norm_feed_forward(
      x_BSD, residual_BSD, {norm->weight, norm->epsilon}, gate_up->weight, down->weight, options));
}

double FeedForwardImpl::flops_per_token() const {
  return 3 * product_flops(dim_, ffn_);
}

double FeedForwardImpl::recomputed_flops_per_token() const {
  return product_flops(dim_, 2 * ffn_);
}

}  // namespace sherd
