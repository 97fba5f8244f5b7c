// SPDX-License-Identifier: Apache-2.0
// Optimizers where a rank has small pieces of some parameters and nothing of others.
#include <torch/nn/utils/clip_grad.h>

#include "optim/flat_model.h"
#include "shard/granules.h"

namespace sherd::testing {
namespace {

/// One element: most ranks have nothing of it.
struct SingleImpl : torch::nn::Module {
  SingleImpl() { weight = register_parameter("weight", torch::ones({1, 1})); }
  at::Tensor forward(double factor) { return (weight * factor).sum(); }
  at::Tensor weight;
};
SHERD_MODULE(Single);

class AdamWPieces : public ::testing::TestWithParam<ShardingCase> {
 protected:
  UnitOptions options() const { return options_for(GetParam()); }
};

TEST_P(AdamWPieces, TorchsOptimizersGetNoEmptyTensors) {
  for (const auto kind : {Optimizer::sgd, Optimizer::adamw}) {
    auto model = make_sharded_flat_model(options());
    auto reference = make_flat_model();
    const auto mine = parameters(model);
    for (const auto& piece : mine) EXPECT_GT(piece.numel(), 0);
    EXPECT_EQ(named_parameters(model).size(), reference->parameters().size());
    const auto optimizer = make_optimizer(kind, mine);
    const auto torchs = make_optimizer(kind, reference->parameters());
    for (int64_t i = 0; i < 10; ++i) {
      model(i).backward();
      step(model, *optimizer);
      reference->zero_grad();
      reference->forward(i).backward();
      torchs->step();
    }
    expect_weights(full_parameters(model), *reference, 1e-6);
  }
}

TEST_P(AdamWPieces, ARankMayHaveNoElementsAtAll) {
  for (const auto kind : {Optimizer::sgd, Optimizer::adamw}) {
    Single reference;
    Single model;
    {
      const torch::NoGradGuard no_grad;
      reference->weight.fill_(0.5);
      model->weight.fill_(0.5);
    }
    to_device(*model);
    fully_shard(model, options());
    const auto optimizer = make_optimizer(kind, parameters(model));
    const auto torchs = make_optimizer(kind, reference->parameters());
    for (int64_t i = 0; i < 3; ++i) {
      model(2.0).backward();
      step(model, *optimizer);
      reference->zero_grad();
      reference->forward(2.0).backward();
      torchs->step();
    }
    expect_weights(full_parameters(model), *reference, 1e-6);
  }
}

/// Cut by rows, in blocks, nowhere, or each parameter in its own way.
TEST_P(AdamWPieces, EqualsTorchsWhereverParametersMayBeCut) {
  for (const auto& granules : all_granules()) {
    SCOPED_TRACE(granules.name);
    auto given = options();
    add_granules(given, granules, *make_flat_model());
    auto model = make_sharded_flat_model(given);
    auto reference = make_flat_model();
    AdamW optimizer(model, {.lr = 2e-3, .weight_decay = 0.1, .max_norm = 3});
    torch::optim::AdamW torchs(
        reference->parameters(), torch::optim::AdamWOptions(2e-3).weight_decay(0.1));
    for (int64_t step = 0; step < 4; ++step) {
      model(step).backward();
      optimizer.step();
      reference->zero_grad();
      reference->forward(step).backward();
      const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), 3);
      EXPECT_NEAR(optimizer.gradient_norm(), norm, 1e-6 * norm);
      torchs.step();
    }
    const auto weights = full_parameters(model);
    expect_weights(weights, *reference, 1e-6);
    expect_granules(named_parameters(model), weights, granules);
  }
}

TEST_P(AdamWPieces, EmptyLocalShardsDoNotCorruptTheirNeighbours) {
  auto model = make_sharded_flat_model(options());
  AdamW optimizer(model, {.lr = 0, .weight_decay = 0});
  const auto before = full_parameters(model);
  int64_t empty = 0;
  for (const auto& [name, piece] : named_parameters(model)) empty += piece.numel() == 0;
  const bool sharded = GetParam().placement.spreads(Role::optimizer).inner == Spread::shard;
  if (sharded && test_world().size() >= 3) {
    EXPECT_GT(empty, 0);
  }
  model(1).backward();
  optimizer.step();  // an lr of 0 changes nothing, wherever a shard begins and ends
  const auto after = full_parameters(model);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(before[i].second, after[i].second)) << before[i].first;
  }
  for (const auto& [name, first, second] : optimizer.moments()) {
    EXPECT_TRUE((second >= 0).all().item<bool>()) << name;
    EXPECT_EQ((first != 0).sum().item<int64_t>(), first.numel()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, AdamWPieces, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

}  // namespace
}  // namespace sherd::testing
