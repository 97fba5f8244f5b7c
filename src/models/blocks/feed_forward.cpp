// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/feed_forward.h"

#include <ATen/ops/silu.h>

#include "sherd/nn/recompute.h"

namespace sherd {

Linear plain_linear(int64_t in, int64_t out) {
  return Linear(torch::nn::LinearOptions(in, out).bias(false));
}

double product_flops(int64_t in, int64_t out) {
  return 2.0 * static_cast<double>(in) * static_cast<double>(out);
}

at::Tensor gated(const at::Tensor& opened, const at::Tensor& raised, bool recomputes) {
  const auto both = [](const at::Tensor& a, const at::Tensor& b) { return at::silu(a) * b; };
  return recomputes ? recompute(both, opened, raised) : both(opened, raised);
}

FeedForwardImpl::FeedForwardImpl(int64_t dim, int64_t ffn, bool recomputes)
    : dim_(dim), ffn_(ffn), recomputes_(recomputes) {
  gate = register_module("gate", plain_linear(dim, ffn));
  up = register_module("up", plain_linear(dim, ffn));
  down = register_module("down", plain_linear(ffn, dim));
}

at::Tensor FeedForwardImpl::forward(const at::Tensor& x_BSD) {
  const auto opened = gate(x_BSD);
  return down(gated(opened, up(x_BSD), recomputes_));
}

double FeedForwardImpl::flops_per_token() const {
  return 3 * product_flops(dim_, ffn_);
}

}  // namespace sherd
