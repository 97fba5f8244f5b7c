// SPDX-License-Identifier: Apache-2.0
#include "models/hybrid/state_space.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "ranks/rank_world.h"

namespace sherd::testing {
namespace {

/// The recurrence of the header, token by token.
at::Tensor one_by_one(const StateSpaceInputs& in) {
  const auto& x = in.x_BSHP;
  const int64_t heads = x.size(2);
  const int64_t per_group = heads / in.write_BSGN.size(2);
  auto state = at::zeros({x.size(0), heads, x.size(3), in.write_BSGN.size(3)}, x.options());
  std::vector<at::Tensor> results;
  for (int64_t s = 0; s < x.size(1); ++s) {
    const auto step = in.step_BSH.select(1, s);
    const auto write = in.write_BSGN.select(1, s).repeat_interleave(per_group, 1);
    const auto read = in.read_BSGN.select(1, s).repeat_interleave(per_group, 1);
    const auto kept = (step * in.decay_H).exp();
    const auto written = (x.select(1, s) * step.unsqueeze(-1)).unsqueeze(-1) * write.unsqueeze(2);
    state = state * kept.unsqueeze(-1).unsqueeze(-1) + written;
    results.push_back((state * read.unsqueeze(2)).sum(-1));
  }
  return at::stack(results, 1);
}

StateSpaceInputs random_inputs(int64_t positions, int64_t heads, int64_t groups) {
  at::manual_seed(7);
  const auto on = at::TensorOptions().dtype(at::kFloat).device(test_world().device());
  const auto leaf = [](const at::Tensor& value) { return value.detach().requires_grad_(); };
  return {
      leaf(at::randn({2, positions, heads, 3}, on)), leaf(at::rand({2, positions, heads}, on)),
      leaf(-at::rand({heads}, on) * 2), leaf(at::randn({2, positions, groups, 5}, on)),
      leaf(at::randn({2, positions, groups, 5}, on))};
}

std::vector<at::Tensor> all(const StateSpaceInputs& in) {
  return {in.x_BSHP, in.step_BSH, in.decay_H, in.write_BSGN, in.read_BSGN};
}

TEST(StateSpaceTest, ChunksGiveWhatTheRecurrenceGivesAndItsGradients) {
  for (const auto& [positions, chunk] :
       {std::pair<int64_t, int64_t>{1, 4}, {4, 4}, {7, 4}, {23, 4}, {9, 1}, {12, 64}, {65, 32}}) {
    for (const auto& [heads, groups] : {std::pair<int64_t, int64_t>{4, 1}, {4, 2}, {3, 3}}) {
      SCOPED_TRACE(c10::str(positions, " positions, chunks of ", chunk, ", ", groups, " groups"));
      const auto in = random_inputs(positions, heads, groups);
      const auto expected = one_by_one(in);
      const auto weight = at::randn_like(expected);
      (expected * weight).sum().backward();
      std::vector<at::Tensor> gradients;
      for (const auto& leaf : all(in)) {
        gradients.push_back(leaf.grad().clone());
        leaf.mutable_grad().reset();
      }
      const auto result = state_space(in, chunk);
      ASSERT_EQ(result.sizes(), expected.sizes());
      EXPECT_LE((result - expected).abs().max().item<double>(), 2e-5);
      (result * weight).sum().backward();
      for (size_t i = 0; i < gradients.size(); ++i) {
        const auto bound = 1e-5 * std::max(1.0, gradients[i].abs().max().item<double>());
        EXPECT_LE((all(in)[i].grad() - gradients[i]).abs().max().item<double>(), 10 * bound) << i;
      }
    }
  }
}

TEST(StateSpaceTest, WhatComesLaterChangesNothingBefore) {
  auto in = random_inputs(20, 2, 1);
  const c10::NoGradGuard no_grad;
  const auto before = state_space(in, 8).narrow(1, 0, 13).clone();
  in.x_BSHP.narrow(1, 13, 7).fill_(1e6);
  in.step_BSH.narrow(1, 13, 7).fill_(50);
  EXPECT_TRUE(at::equal(state_space(in, 8).narrow(1, 0, 13), before));
}

TEST(StateSpaceTest, AFastDecayDoesNotOverflow) {
  auto in = random_inputs(64, 2, 1);
  const c10::NoGradGuard no_grad;
  in.decay_H.fill_(-16);
  in.step_BSH.fill_(20);
  EXPECT_TRUE(state_space(in, 32).isfinite().all().item<bool>());
}

}  // namespace
}  // namespace sherd::testing
