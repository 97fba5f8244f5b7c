// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "models/blocks/feed_forward.h"
#include "models/blocks/sequence_ranks.h"
#include "sherd/models/moe.h"
#include "sherd/nn/exchange.h"
#include "sherd/nn/functional.h"
#include "sherd/shard/module.h"
#include "sherd/shard/options.h"

namespace sherd {

/// Feed-forwards of which a router chooses some for each token. If it recomputes, their products
/// with gate and up are recomputed in the backward.
struct ExpertsImpl : torch::nn::Module {
  /// `ends_recompute`: its result is the result of a recompute around it. `sequence`: the ranks
  /// that have other tokens of the same sequences.
  ExpertsImpl(
      int64_t dim,
      const ExpertOptions& options,
      bool recomputes,
      bool ends_recompute = false,
      const SequenceRanks& sequence = {});
  /// Returns the result and the weighted sum of the balance loss.
  std::vector<at::Tensor> forward(const at::Tensor& x_BSD);
  /// Returns s + result, where s = x + residual and the experts see norm(s), and the same sum.
  std::vector<at::Tensor> forward_residual(
      const at::Tensor& x_BSD, const at::Tensor& residual_BSD, const RmsNorm& norm);
  /// Returns the operations of one token's forward.
  double flops_per_token() const;
  /// Returns those of them that are repeated if it recomputes.
  double recomputed_flops_per_token() const;

  at::Tensor router;   ///< [E, D]
  at::Tensor gate_up;  ///< [E, 2F, D]: for each expert the gate's rows, then up's
  at::Tensor down;     ///< [E, D, F]; like gate_up of this rank's experts alone
  FeedForward shared{nullptr};

 private:
  ExpertParameters expert_parameters() const { return {router, gate_up, down, ranks_}; }
  RoutingOptions routing() const;

  int64_t dim_;
  ExpertOptions options_;
  bool recomputes_;
  bool ends_recompute_;
  std::optional<Exchange> ranks_;
  SequenceRanks sequence_;
};
SHERD_MODULE(Experts);

/// Returns the rules for the experts of all layers (LanguageModel::rules): none unless ranks share
/// them.
std::vector<ParameterRule> expert_rules(const ExpertOptions& options, int64_t dim);

}  // namespace sherd
