// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/blocks/norm.h"
#include "sherd/models/hybrid.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

/// A Mamba-2 layer: a short convolution, a state space, and a gate.
struct MambaImpl : torch::nn::Module {
  MambaImpl(int64_t dim, double norm_eps, const MambaOptions& options);
  at::Tensor forward(const at::Tensor& x_BSD);
  /// Returns the operations of one token's forward.
  double flops_per_token(int64_t seq) const;

  Linear input{nullptr}, output{nullptr};
  at::Tensor filter, filter_bias;            // [channels · width], [channels]
  at::Tensor decay_log, step_bias, through;  // [heads] each
  RmsNorm norm{nullptr};

 private:
  at::Tensor convolved(const at::Tensor& x_BSC) const;
  int64_t dim_;
  MambaOptions options_;
  int64_t inner_;
  int64_t heads_;
  int64_t channels_;  // of the convolution
};
SHERD_MODULE(Mamba);

}  // namespace sherd
