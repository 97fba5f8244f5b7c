// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/blocks/feed_forward.h"
#include "sherd/models/moe.h"
#include "sherd/shard/module.h"

namespace sherd {

/// The decisions of a router: K of E experts for each of T tokens.
struct Routing {
  at::Tensor weights_TK;  ///< weights of each token's experts, which sum to 1; fp32
  at::Tensor chosen_TK;   ///< indices of each token's experts
  at::Tensor balance;     ///< load-balancing loss, summed over all tokens
};

/// Routes tokens by logits_BSE, in fp32.
Routing route(const at::Tensor& logits_BSE, int64_t top_k);

struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl(int64_t dim, const ExpertOptions& options, bool recomputes);
  /// Returns the result and the weighted sum of the balance loss.
  std::vector<at::Tensor> forward(const at::Tensor& x_BSD);
  /// Returns the operations of one token's forward.
  double flops_per_token() const;
  /// Returns those of them that are repeated if it recomputes.
  double recomputed_flops_per_token() const;

  at::Tensor router, gate, up, down;  // [E, D], twice [E, F, D], [E, D, F]
  FeedForward shared{nullptr};

 private:
  at::Tensor chosen_experts(const at::Tensor& x_TD, const Routing& routing) const;
  int64_t dim_;
  ExpertOptions options_;
  bool recomputes_;
};
SHERD_MODULE(Experts);

}  // namespace sherd
