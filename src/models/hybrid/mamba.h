// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/blocks/norm.h"
#include "models/blocks/sequence_ranks.h"
#include "sherd/models/hybrid.h"
#include "sherd/nn/functional.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

/// A Mamba-2 layer: a short convolution, a state space, and a gate. If it recomputes, the
/// convolution is recomputed in the backward.
struct MambaImpl : torch::nn::Module {
  /// `ranks`: those that share sequences; they must divide the heads.
  MambaImpl(
      int64_t dim,
      double norm_eps,
      const MambaOptions& options,
      bool recomputes,
      const SequenceRanks& ranks = {});
  /// Returns x + mixer(before(x)).
  at::Tensor forward(const at::Tensor& x_BSD, const RmsNorm& before);
  /// Returns the operations of one token's forward.
  double flops_per_token(int64_t seq) const;
  /// Returns those of them that are repeated if it recomputes.
  double recomputed_flops_per_token() const;

  Linear input{nullptr}, output{nullptr};    ///< rows of the gate, the channels, the steps
  at::Tensor filter, filter_bias;            ///< [channels · width], [channels]
  at::Tensor decay_log, step_bias, through;  ///< [heads] each
  RmsNorm norm{nullptr};

 private:
  int64_t dim_;
  MambaShape shape_;
  bool recomputes_;
  MambaRanks ranks_;
};
SHERD_MODULE(Mamba);

}  // namespace sherd
