// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "models/blocks/norm.h"
#include "sherd/nn/exchange.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

Linear plain_linear(int64_t in, int64_t out);
/// Returns the operations of a product for one row.
double product_flops(int64_t in, int64_t out);

/// SwiGLU. If it recomputes, the product of gate and up is recomputed in the backward. With ranks
/// (along `tp`), each has an equal part of the width.
struct FeedForwardImpl : torch::nn::Module {
  /// `ends_recompute`: its result is the result of a recompute around it. Throws unless the ranks
  /// divide `ffn`.
  FeedForwardImpl(
      int64_t dim,
      int64_t ffn,
      bool recomputes,
      bool ends_recompute = false,
      std::optional<Exchange> ranks = {});
  at::Tensor forward(const at::Tensor& x_BSD);
  /// Returns s + forward(norm(s)), where s = x + residual.
  at::Tensor forward_residual(
      const at::Tensor& x_BSD, const at::Tensor& residual_BSD, const RmsNorm& norm);
  /// Returns the operations of one token's forward.
  double flops_per_token() const;
  /// Returns those of them that are repeated if it recomputes.
  double recomputed_flops_per_token() const;

  Linear gate_up{nullptr};  ///< the gate's rows, then up's
  Linear down{nullptr};

 private:
  int64_t dim_;
  int64_t ffn_;
  bool recomputes_;
  bool ends_recompute_;
  std::optional<Exchange> ranks_;
};
SHERD_MODULE(FeedForward);

}  // namespace sherd
