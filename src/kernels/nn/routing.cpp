// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/routing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace sherd {

Routing route(const at::Tensor& logits_TE, int64_t top_k, bool normed) {
  Routing routing;
  routing.normed = normed;
  routing.chances_TE = logits_TE.softmax(-1);
  const auto [best_TK, chosen_TK] = routing.chances_TE.topk(top_k, -1);
  const auto weights_TK = normed ? best_TK / best_TK.sum(-1, /*keepdim=*/true) : best_TK;
  const auto expert_R = chosen_TK.flatten();
  const auto order_R =
      std::get<1>(at::sort(expert_R, /*stable=*/std::optional<bool>(true), /*dim=*/0));
  const auto rows_R = at::arange(order_R.numel(), order_R.options());
  routing.row_TK =
      at::empty_like(order_R).scatter_(0, order_R, rows_R).to(at::kInt).view(chosen_TK.sizes());
  routing.token_R = order_R.div(top_k, "floor").to(at::kInt);
  routing.weight_R = weights_TK.flatten().index_select(0, order_R);
  routing.end_E = at::zeros({logits_TE.size(1)}, expert_R.options())
                      .scatter_add(0, expert_R, at::ones_like(expert_R))
                      .cumsum(0)
                      .to(at::kInt);
  routing.chosen_TK = chosen_TK.to(at::kInt);
  return routing;
}

at::Tensor expert_loads(const Routing& routing, int64_t sequences) {
  const int64_t experts = routing.chances_TE.size(1);
  const int64_t rows = routing.chosen_TK.numel() / std::max<int64_t>(sequences, 1);
  const auto expert_BR = routing.chosen_TK.view({sequences, rows}).to(at::kLong);
  const auto options = routing.chances_TE.options();
  return at::zeros({sequences, experts}, options)
      .scatter_add(1, expert_BR, at::ones_like(expert_BR, options))
      .mul_(static_cast<double>(experts) / static_cast<double>(std::max<int64_t>(rows, 1)));
}

at::Tensor balance_loss(const Routing& routing, const at::Tensor& loads_BE) {
  const int64_t sequences = loads_BE.size(0);
  const int64_t tokens = routing.chances_TE.size(0) / std::max<int64_t>(sequences, 1);
  const auto sums_BE = routing.chances_TE.view({sequences, tokens, loads_BE.size(1)}).sum(1);
  return (sums_BE * loads_BE).sum();
}

at::Tensor routing_gradient(
    const Routing& routing,
    const at::Tensor& d_weight_R,
    const at::Tensor& d_balance,
    const at::Tensor& loads_BE) {
  const auto& chances_TE = routing.chances_TE;
  auto d_chances_TE = at::zeros_like(chances_TE);
  if (d_balance.defined()) {
    const int64_t sequences = loads_BE.size(0);
    const int64_t tokens = chances_TE.size(0) / std::max<int64_t>(sequences, 1);
    d_chances_TE.view({sequences, tokens, chances_TE.size(1)})
        .copy_((loads_BE * d_balance).unsqueeze(1));
  }
  if (d_weight_R.defined()) {
    const auto row_R = routing.row_TK.flatten();
    const auto of_tokens = [&](const at::Tensor& values_R) {
      return values_R.index_select(0, row_R).view(routing.row_TK.sizes());
    };
    const auto chosen_TK = routing.chosen_TK.to(at::kLong);
    auto d_best_TK = of_tokens(d_weight_R);
    if (routing.normed) {  // a weight is a chance over the sum of the token's K chances
      const auto sum_T1 = chances_TE.gather(1, chosen_TK).sum(1, /*keepdim=*/true);
      const auto mean_T1 = (d_best_TK * of_tokens(routing.weight_R)).sum(1, /*keepdim=*/true);
      d_best_TK = (d_best_TK - mean_T1) / sum_T1;
    }
    d_chances_TE.scatter_add_(1, chosen_TK, d_best_TK);
  }
  const auto mean_T1 = (d_chances_TE * chances_TE).sum(1, /*keepdim=*/true);
  return (d_chances_TE - mean_T1).mul_(chances_TE);
}

}  // namespace sherd
