// SPDX-License-Identifier: Apache-2.0
// Parameters that no backward of a step reaches, and units that are held from outside.
#include "sherd/shard/unused.h"

#include <torch/csrc/autograd/function_hook.h>

#include "shard/failure_fixture.h"
#include "shard/twin.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/shards.h"

namespace sherd::testing {
namespace {

/// Reaches some of its parameters only.
struct PartlyReachedImpl : torch::nn::Module {
  PartlyReachedImpl() {
    for (const auto* name : {"a", "b", "c"}) {
      weights.push_back(register_parameter(name, torch::randn({5, 3})));
    }
  }
  at::Tensor forward(const std::vector<size_t>& reached) {
    auto sum = at::zeros({}, weights[0].options());
    for (const auto i : reached) sum = sum + weights[i].square().sum();
    return sum;
  }
  std::vector<at::Tensor> weights;
};
SHERD_MODULE(PartlyReached);

const std::vector<std::vector<size_t>> kReached{{0, 1, 2}, {0, 2}, {2}, {0, 1, 2}};

PartlyReached make_partly_reached() {
  torch::manual_seed(4);
  PartlyReached model;
  to_device(*model);
  return model;
}

class UnusedTest : public ::testing::TestWithParam<ShardingCase> {
 protected:
  UnusedTest() { fully_shard(model_, options_for(GetParam())); }
  PartlyReached model_ = make_partly_reached();
};

TEST_P(UnusedTest, ParametersThatNoBackwardReachesStayAsWithTorch) {
  auto reference = make_partly_reached();
  AdamW optimizer(model_, {.lr = 0.1, .weight_decay = 0.1});
  torch::optim::AdamW torchs(
      reference->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  for (const auto& reached : kReached) {
    model_(reached).backward();
    leave_out_unused(model_);
    optimizer.step();
    reference->zero_grad();
    reference->forward(reached).backward();
    torchs.step();
    expect_weights(full_parameters(model_), *reference, 1e-6);
  }
  EXPECT_EQ(optimizer.progress().missed.at("b"), 2);
}

TEST_P(UnusedTest, OptimizersOfTorchFindNoGradient) {
  const auto has_gradient = [&](size_t i) {
    return named_parameters(model_)[i].second.grad().defined();
  };
  model_(kReached[1]).backward();
  EXPECT_TRUE(has_gradient(1));  // zeros
  leave_out_unused(model_);
  EXPECT_TRUE(has_gradient(0));
  EXPECT_FALSE(has_gradient(1));
  publish(model_);
  model_(kReached[0]).backward();
  leave_out_unused(model_);
  EXPECT_TRUE(has_gradient(1));
  publish(model_);
}

TEST_P(UnusedTest, OneRankOrOneMicroBatchIsEnough) {
  micro_batches(model_, 2);
  const auto before = full_parameters(model_);
  AdamW optimizer(model_);
  const bool first = test_world().rank() == 0;
  model_(kReached[first ? 1 : 2]).backward();  // a on rank 0 alone, in one micro-batch
  EXPECT_THROW(leave_out_unused(model_), c10::Error);
  model_(kReached[2]).backward();
  leave_out_unused(model_);
  optimizer.step();
  const auto after = full_parameters(model_);
  EXPECT_FALSE(after[0].second.equal(before[0].second));
  EXPECT_TRUE(after[1].second.equal(before[1].second));
  EXPECT_FALSE(after[2].second.equal(before[2].second));
}

TEST_P(UnusedTest, AHeldUnitOutlivesTheHooksOfItsParameters) {
  const auto unit = keep_unit(model_);
  for (const auto& weight : model_->weights) {
    torch::autograd::impl::set_post_acc_grad_hooks(weight, nullptr);
  }
  AdamW optimizer(model_);
  model_(kReached[0]).backward();
  optimizer.step();
  EXPECT_EQ(optimizer.updates(), 1);
}

TEST_P(UnusedTest, ShardsHaveEveryElementOfTheWorldOnce) {
  auto whole = full_parameters(model_);
  for (const auto& shard : shards(model_)) {
    const auto full = std::find_if(
        whole.begin(), whole.end(), [&](const auto& entry) { return entry.first == shard.name; });
    ASSERT_NE(full, whole.end());
    EXPECT_EQ(full->second.sizes(), at::IntArrayRef(shard.shape));
    const auto part = full->second.flatten().narrow(0, shard.begin, shard.main.numel());
    EXPECT_TRUE(part.equal(shard.main));
  }
  EXPECT_THROW(keep_unit(make_partly_reached()), c10::ValueError);
}

INSTANTIATE_TEST_SUITE_P(Ways, UnusedTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

}  // namespace
}  // namespace sherd::testing
