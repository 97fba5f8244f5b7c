// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

Linear plain_linear(int64_t in, int64_t out);
/// Of one row.
double product_flops(int64_t in, int64_t out);
/// silu(opened) · raised; if asked, what its backward needs is computed again there.
at::Tensor gated(const at::Tensor& opened, const at::Tensor& raised, bool recomputes);

/// SwiGLU.
struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl(int64_t dim, int64_t ffn, bool recomputes);
  at::Tensor forward(const at::Tensor& x_BSD);
  /// Of one token's forward.
  double flops_per_token() const;

  Linear gate{nullptr}, up{nullptr}, down{nullptr};

 private:
  int64_t dim_;
  int64_t ffn_;
  bool recomputes_;
};
SHERD_MODULE(FeedForward);

}  // namespace sherd
