// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, T = B · S tokens, D dim, E experts, K experts of a token, R = T
// · K rows of all experts, F width inside an expert.
#include "models/moe/experts.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include "nn/autocast.h"

namespace sherd {

Routing route(const at::Tensor& logits_BSE, int64_t top_k) {
  const int64_t sequences = logits_BSE.size(0);
  const int64_t experts = logits_BSE.size(2);
  const auto chances_BSE = logits_BSE.softmax(-1);
  const auto [weights_BSK, chosen_BSK] = chances_BSE.topk(top_k, -1);
  Routing routing;
  routing.weights_TK = (weights_BSK / weights_BSK.sum(-1, /*keepdim=*/true)).flatten(0, 1);
  routing.chosen_TK = chosen_BSK.flatten(0, 1);
  // Of each sequence: the share of its tokens that an expert has, times what the router thinks of
  // it. Per token 1 where all are equal, up to E where one has all.
  const auto taken_BR = chosen_BSK.flatten(1);
  const auto share_BE =
      at::zeros({sequences, experts}, chances_BSE.options())
          .scatter_add(1, taken_BR, at::ones_like(taken_BR, chances_BSE.options()))
          .div(static_cast<double>(top_k));
  routing.balance = (share_BE * chances_BSE.mean(1)).sum() * experts;
  return routing;
}

ExpertsImpl::ExpertsImpl(int64_t dim, const ExpertOptions& options, bool recomputes)
    : dim_(dim), options_(options), recomputes_(recomputes) {
  const auto [count, ffn] = std::pair(options.count, options.ffn);
  router = register_parameter("router", at::empty({count, dim}));
  gate = register_parameter("gate", at::empty({count, ffn, dim}));
  up = register_parameter("up", at::empty({count, ffn, dim}));
  down = register_parameter("down", at::empty({count, dim, ffn}));
  if (options.shared_ffn > 0) {
    shared = register_module("shared", FeedForward(dim, options.shared_ffn, recomputes));
  }
}

std::vector<at::Tensor> ExpertsImpl::forward(const at::Tensor& x_BSD) {
  // A choice between near equals must not depend on how products are rounded.
  const auto logits_BSE = [&] {
    const WithoutAutocast precise(x_BSD);
    return at::linear(x_BSD.to(at::kFloat), router.to(at::kFloat));
  }();
  const auto routing = route(logits_BSE, options_.top_k);
  auto result_BSD =
      chosen_experts(x_BSD.flatten(0, 1), routing).view_as(x_BSD).to(x_BSD.scalar_type());
  if (shared) result_BSD = result_BSD + shared(x_BSD);
  return {result_BSD, routing.balance * options_.balance};
}

/// No token is dropped and nobody asks how many an expert has: rows are sorted by expert, and each
/// product is one of all experts.
at::Tensor ExpertsImpl::chosen_experts(const at::Tensor& x_TD, const Routing& routing) const {
  const int64_t top_k = options_.top_k;
  const auto expert_R = routing.chosen_TK.flatten();
  const auto order_R = expert_R.argsort(/*stable=*/true);
  const auto counts_E = at::zeros({options_.count}, expert_R.options())
                            .scatter_add(0, expert_R, at::ones_like(expert_R));
  const auto ends_E = counts_E.cumsum(0).to(at::kInt);
  const auto dtype = product_dtype(x_TD);  // autocasting does not know grouped products
  const auto product = [&](const at::Tensor& rows, const at::Tensor& weight) {
    return at::_grouped_mm(rows, weight.to(dtype).transpose(1, 2), ends_E);
  };
  // Copies first, then a permutation: its backward adds nothing up, so it does not depend on the
  // order in which a device happens to add.
  const auto rows_RD = x_TD.to(dtype).unsqueeze(1).expand({-1, top_k, -1}).flatten(0, 1);
  const auto sorted_RD = rows_RD.index_select(0, order_R);
  const auto gate_RF = product(sorted_RD, gate);
  const auto result_RD = product(swiglu(gate_RF, product(sorted_RD, up), recomputes_), down);
  const auto back_R =
      at::empty_like(order_R).scatter_(0, order_R, at::arange(order_R.numel(), order_R.options()));
  const auto result_TKD = result_RD.index_select(0, back_R).unflatten(0, {-1, top_k});
  return (result_TKD * routing.weights_TK.unsqueeze(-1).to(dtype)).sum(1);
}

double ExpertsImpl::flops_per_token() const {
  const double chosen = static_cast<double>(options_.top_k) * 3 * product_flops(dim_, options_.ffn);
  return chosen + product_flops(dim_, options_.count) + (shared ? shared->flops_per_token() : 0);
}

double ExpertsImpl::recomputed_flops_per_token() const {
  return shared ? shared->recomputed_flops_per_token() : 0;
}

}  // namespace sherd
