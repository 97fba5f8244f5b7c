// SPDX-License-Identifier: Apache-2.0
// A model that is dropped takes everything with it.
#include <optional>

#include "ranks/freed_tensors.h"
#include "shard/failure_fixture.h"

namespace sherd::testing {
namespace {

/// A sharded model, and whether it is all gone after it was dropped.
class Dropped {
 public:
  explicit Dropped(const ShardingCase& way) : before_(wait_for_freed_tensors()) {
    auto& model = model_.emplace();
    to_device(*model);
    const UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
    for (auto& block : model->blocks) fully_shard(block, options);
    fully_shard(model, options);
    for (const auto& module : model->modules()) modules_.push_back(module);
  }

  FaultyModel& model() { return *model_; }
  at::Tensor forward() {
    const auto device = test_world().device();
    return model()(torch::ones({4, 7}).to(device), torch::zeros({4, 3}).to(device));
  }
  void train_step() {
    torch::optim::SGD optimizer(parameters(model()), torch::optim::SGDOptions(0.01));
    forward().backward();
    step(model(), optimizer);
  }
  void drop() {
    model_.reset();
    for (size_t i = 0; i < modules_.size(); ++i) EXPECT_TRUE(modules_[i].expired()) << i;
  }
  void expect_all_freed() const { EXPECT_EQ(wait_for_freed_tensors(before_), before_); }

 private:
  int64_t before_;
  std::optional<FaultyModel> model_;
  std::vector<std::weak_ptr<torch::nn::Module>> modules_;
};

class LifetimeTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(LifetimeTest, ADroppedModelFreesEverything) {
  Dropped dropped(GetParam());
  dropped.train_step();
  dropped.train_step();
  dropped.drop();
  dropped.expect_all_freed();
}

TEST_P(LifetimeTest, AModelThatNeverRanFreesEverything) {
  Dropped dropped(GetParam());
  dropped.drop();
  dropped.expect_all_freed();
}

TEST_P(LifetimeTest, AModelDroppedInTheMiddleOfAStepFreesEverything) {
  Dropped dropped(GetParam());
  micro_batches(dropped.model(), 3);
  dropped.forward().backward();
  dropped.forward();  // and its graph is dropped
  dropped.drop();
  dropped.expect_all_freed();
}

TEST_P(LifetimeTest, AGraphThatOutlivesTheModelKeepsNoModuleAndFreesTheRestWithIt) {
  Dropped dropped(GetParam());
  dropped.train_step();
  auto loss = dropped.forward();
  dropped.drop();
  loss.reset();
  dropped.expect_all_freed();
}

/// Whatever comes of it, it is no crash, and nothing stays behind.
TEST_P(LifetimeTest, ABackwardAfterTheModelIsGoneLeavesNothingBehind) {
  Dropped dropped(GetParam());
  dropped.train_step();
  auto loss = dropped.forward();
  dropped.drop();
  error_of([&] { loss.backward(); });
  loss.reset();
  dropped.expect_all_freed();
}

TEST_P(LifetimeTest, AModelDroppedAfterAnExceptionFreesEverything) {
  Dropped dropped(GetParam());
  dropped.train_step();
  dropped.model()->blocks[1]->after = [](const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("a mistake");
  };
  expect_error({"a mistake"}, [&] { dropped.forward(); });
  dropped.model()->blocks[1]->after = in_backward;
  InBackward::action = [] { throw std::runtime_error("another"); };
  expect_error({"another"}, [&] { dropped.forward().backward(); });
  InBackward::action = nullptr;
  dropped.drop();
  dropped.expect_all_freed();
}

TEST_P(LifetimeTest, AnOptimizerThatOutlivesTheModelFreesTheRestWithIt) {
  Dropped dropped(GetParam());
  auto optimizer = make_optimizer(Optimizer::adamw, parameters(dropped.model()));
  dropped.forward().backward();
  step(dropped.model(), *optimizer);
  dropped.drop();
  optimizer.reset();
  dropped.expect_all_freed();
}

/// Each has its own place in the order of collectives, however the ranks' timing differs.
TEST_P(LifetimeTest, TwoModelsOnOneMeshTrainSideBySide) {
  FailureFixture fixture({.way = GetParam(), .micro_batches = 3});
  fixture.train(4);
}

TEST_P(LifetimeTest, AModelDroppedInTheMiddleOfAStepLeavesTheMeshToTheNext) {
  for (int64_t i = 0; i < 4; ++i) {
    Dropped dropped(GetParam());
    micro_batches(dropped.model(), 3);
    dropped.forward().backward();
    dropped.drop();
    FailureFixture fixture({.way = GetParam()});
    fixture.train();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, LifetimeTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

struct EchoImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
SHERD_MODULE(Echo);

struct WithEchoImpl : torch::nn::Module {
  WithEchoImpl() {
    linear = register_module("linear", sherd::Linear(7, 3));
    echo = register_module("echo", Echo());
  }
  at::Tensor forward(const at::Tensor& x) { return echo(linear(x)).square().sum(); }
  sherd::Linear linear{nullptr};
  Echo echo{nullptr};
};
SHERD_MODULE(WithEcho);

TEST(ErrorsTest, AUnitWithoutParametersIsFreedWithItsModel) {
  const int64_t before = wait_for_freed_tensors();
  {
    WithEcho model;
    to_device(*model);
    const UnitOptions options{.mesh = mesh_for({})};
    fully_shard(model->echo, options);
    fully_shard(model, options);
    model(torch::ones({2, 7}).to(test_world().device())).backward();
  }
  EXPECT_EQ(wait_for_freed_tensors(before), before);
}

}  // namespace
}  // namespace sherd::testing
