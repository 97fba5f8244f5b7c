// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "models/blocks/feed_forward.h"
#include "sherd/models/moe.h"
#include "sherd/shard/module.h"

namespace sherd {

/// What a router decides, for T tokens of which each takes K of E experts.
struct Routing {
  at::Tensor weights_TK;  ///< of each token's experts; they add up to 1. fp32
  at::Tensor chosen_TK;   ///< experts
  at::Tensor balance;     ///< the loss that wants them equally busy, summed over all tokens
};

/// Routing by logits_BSE, in fp32.
Routing route(const at::Tensor& logits_BSE, int64_t top_k);

struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl(int64_t dim, const ExpertOptions& options, bool recomputes);
  /// The result and the sum of the balance loss, weighted.
  std::vector<at::Tensor> forward(const at::Tensor& x_BSD);
  /// Of one token's forward.
  double flops_per_token() const;

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
