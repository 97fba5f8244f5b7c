// SPDX-License-Identifier: Apache-2.0
#include "models/moe/experts.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "kernels/nn/routing.h"
#include "ranks/rank_world.h"

namespace sherd::testing {
namespace {

Experts make_experts(const ExpertOptions& options, int64_t dim = 16) {
  at::manual_seed(3);
  Experts experts(dim, options, /*recomputes=*/false);
  const c10::NoGradGuard no_grad;
  for (auto& parameter : experts->parameters()) parameter.normal_(0, 0.3);
  experts->to(test_world().device());
  return experts;
}

at::Tensor random_input(int64_t sequences, int64_t positions) {
  at::manual_seed(5);
  return at::randn({sequences, positions, 16}).to(test_world().device());
}

/// Each token through each of its experts, one after another.
at::Tensor one_by_one(const Experts& experts, const at::Tensor& x_BSD, int64_t top_k) {
  const auto x_TD = x_BSD.flatten(0, 1);
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x_TD.size(0); ++t) {
    const auto x = x_TD[t];
    const auto chances = at::mv(experts->router, x).softmax(0);
    const auto [weights, chosen] = chances.topk(top_k);
    auto row = at::zeros_like(x);
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t e = chosen[k].item<int64_t>();
      const auto parts = at::mv(experts->gate_up[e], x).chunk(2);
      const auto hidden = at::silu(parts[0]) * parts[1];
      row = row + at::mv(experts->down[e], hidden) * weights[k] / weights.sum();
    }
    if (experts->shared) {
      const auto& shared = experts->shared;
      const auto halves = at::mv(shared->gate_up->weight, x).chunk(2);
      const auto hidden = at::silu(halves[0]) * halves[1];
      row = row + at::mv(shared->down->weight, hidden);
    }
    rows.push_back(row);
  }
  return at::stack(rows).view_as(x_BSD);
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>() / std::max(1.0, b.abs().max().item<double>());
}

TEST(ExpertsTest, EachTokenGetsItsExpertsAndTheyItsGradients) {
  for (const int64_t shared : {0, 24}) {
    for (const int64_t top_k : {1, 2, 5}) {
      SCOPED_TRACE(c10::str("shared ", shared, ", top ", top_k));
      auto experts = make_experts({.count = 5, .top_k = top_k, .ffn = 24, .shared_ffn = shared});
      const auto x = random_input(2, 9).requires_grad_();
      const auto expected = one_by_one(experts, x, top_k);
      const auto weight = at::randn_like(expected);
      (expected * weight).sum().backward();
      std::vector<at::Tensor> leaves{x};
      for (const auto& parameter : experts->parameters()) leaves.push_back(parameter);
      std::vector<at::Tensor> gradients;
      for (auto& leaf : leaves) {
        gradients.push_back(leaf.grad().clone());
        leaf.mutable_grad().reset();
      }
      const auto result = experts->forward(x)[0];
      EXPECT_LE(distance(result, expected), 1e-5);
      (result * weight).sum().backward();
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_LE(distance(leaves[i].grad(), gradients[i]), 1e-5) << i;
      }
    }
  }
}

TEST(ExpertsTest, AllTokensMayWantTheSameExpert) {
  auto experts = make_experts({.count = 6, .top_k = 1, .ffn = 24});
  const auto x = random_input(1, 33).abs();
  {
    const c10::NoGradGuard no_grad;
    experts->router.fill_(-1);
    experts->router[4].fill_(1);
  }
  const auto result = experts->forward(x);
  EXPECT_LE(distance(result[0], one_by_one(experts, x, 1)), 1e-5);
  result[0].sum().backward();
  for (int64_t e = 0; e < 6; ++e) {
    EXPECT_EQ(experts->down.grad()[e].abs().sum().item<double>() > 0, e == 4) << e;
  }
}

/// Of logits [B, S, E].
double balance_of(const at::Tensor& logits, int64_t top_k) {
  const auto routing = route(logits.flatten(0, 1), top_k);
  return balance_loss(routing, expert_loads(routing, logits.size(0))).item<double>();
}

TEST(ExpertsTest, ABalancedRouterCostsOnePerTokenAndAnUnbalancedOneMore) {
  // Four experts, two of each token: by turns, and always the same two.
  const auto fair = at::tensor({9., 9., 0., 0., 0., 0., 9., 9.}).view({1, 2, 4}).repeat({3, 8, 1});
  const auto unfair = at::tensor({9., 9., 0., 0.}).view({1, 1, 4}).repeat({3, 16, 1});
  EXPECT_NEAR(balance_of(fair, 2), 3 * 16, 1e-3);
  EXPECT_NEAR(balance_of(unfair, 2), 2 * 3 * 16, 0.05);
}

TEST(ExpertsTest, TheBalanceOfABatchIsTheSumOfItsSequences) {
  at::manual_seed(2);
  const auto logits = at::randn({4, 7, 5});
  double sum = 0;
  for (int64_t b = 0; b < 4; ++b) sum += balance_of(logits.narrow(0, b, 1), 2);
  EXPECT_NEAR(balance_of(logits, 2), sum, 1e-4);
}

}  // namespace
}  // namespace sherd::testing
