// SPDX-License-Identifier: Apache-2.0
// Experts in a unit, and what they keep.
#include <torch/optim/sgd.h>

#include <string>

#include "nn/comparison.h"
#include "shard/counting_allocator.h"
#include "sherd/comm/mesh.h"
#include "sherd/nn/functional.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd::testing {
namespace {

constexpr double kExpertUnitEpsilon = 1e-5;

TEST(ExpertsMemoryTest, KeepsAsManyBytesAsTheHeaderSays) {
  constexpr int64_t kTokens = 70, kDim = 64, kWidth = 96, kCount = 6, kChosen = 3;
  const auto bf16 = [](at::IntArrayRef shape) {
    return at::randn(shape).to(at::kBFloat16).set_requires_grad(true);
  };
  const auto x = bf16({2, kTokens, kDim}), residual = bf16({2, kTokens, kDim});
  const auto norm = bf16({kDim});
  const ExpertParameters parameters{
      bf16({kCount, kDim}), bf16({kCount, 2 * kWidth, kDim}), bf16({kCount, kDim, kWidth})};
  for (const bool recomputes : {false, true}) {
    const int64_t before = cpu_memory().live;
    // Holds the graph, and none of the other results.
    const auto balance = norm_experts(
                             x, residual, {norm, kExpertUnitEpsilon}, parameters, kChosen,
                             {.recompute_gate_up = recomputes})
                             .balance;
    const int64_t row = 4 * (recomputes ? 0 : kWidth) + 16;
    const int64_t token = 2 * kDim + kChosen * row + 4 * kCount;
    const auto others = 4 * kCount + static_cast<int64_t>(balance.nbytes());
    EXPECT_EQ(cpu_memory().live - before, 2 * kTokens * token + others) << recomputes;
  }
}

struct ExpertBlockImpl : torch::nn::Module {
  ExpertBlockImpl() {
    norm = register_parameter("norm", at::rand({16}) + 0.5);
    router = register_parameter("router", at::randn({6, 16}));
    gate_up = register_parameter("gate_up", at::randn({6, 48, 16}) * 0.3);
    down = register_parameter("down", at::randn({6, 16, 24}) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto found = norm_experts(
        x, {}, {norm, kExpertUnitEpsilon}, {router, gate_up, down}, 2, {.adds_sum = true});
    return (found.result * found.result).to(at::kFloat).mean() + found.balance * 0.01;
  }
  at::Tensor norm, router, gate_up, down;
};
SHERD_MODULE(ExpertBlock);

class ExpertsUnitTest : public OnDevice {};

TEST_P(ExpertsUnitTest, GradientsInTheUnitsBufferAreThoseThatAutogradCarries) {
  const auto make = [&] {
    at::manual_seed(3);
    ExpertBlock block;
    block->to(device());
    return block;
  };
  // The first micro-batch overwrites, the second adds. Each leaves some experts without tokens.
  const auto batch = [&](int64_t number) {
    at::manual_seed(20 + number);
    return at::randn({1, 2, 16}).to(device());
  };
  auto plain = make();
  for (int64_t i = 0; i < 2; ++i) plain(batch(i)).backward();
  for (const auto strategy : {Strategy::no_shard, Strategy::optim_grads_params}) {
    for (const std::string recipe : {"fp32", "bf16_o2", "bf16_o3"}) {
      const auto world = World::emulated({.rank = 0, .size = 1, .device = device()});
      auto block = make();
      fully_shard(
          block, {.mesh = Mesh(world, {{"dp", 1}}),
                  .placement = Placement(strategy),
                  .precision = Precision::recipe(recipe)});
      micro_batches(block, 2);
      const auto before = full_parameters(block);
      torch::optim::SGD optimizer(parameters(block), torch::optim::SGDOptions(1));
      for (int64_t i = 0; i < 2; ++i) block(batch(i)).backward();
      step(block, optimizer);
      const auto after = full_parameters(block);
      for (size_t i = 0; i < before.size(); ++i) {
        const auto wanted = wide(plain->named_parameters()[before[i].first].grad());
        const auto found = wide(before[i].second) - wide(after[i].second);
        const auto difference = ((found - wanted).norm() / wanted.norm()).item<double>();
        EXPECT_LT(
            difference, recipe == "fp32"      ? 1e-5
                        : recipe == "bf16_o2" ? 0.03
                                              : 0.2)
            << before[i].first << " " << recipe;
      }
    }
  }
}

SHERD_ON_DEVICES(ExpertsUnitTest);

}  // namespace
}  // namespace sherd::testing
