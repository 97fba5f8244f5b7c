// SPDX-License-Identifier: Apache-2.0
// What optimizers and checkpoints see of a model.
#include "shard/parameter_shards.h"

#include <vector>

#include "ranks/rank_world.h"
#include "shard/sharded_model.h"
#include "shard/twin.h"

namespace sherd::testing {
namespace {

Torture sharded_torture(const ShardingCase& way) {
  torch::manual_seed(1);
  Torture model;
  to_device(*model);
  const auto options = options_for(way);
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  return model;
}

double sum_over_ranks(double value) {
  auto sum = torch::full(
      {1}, value, torch::TensorOptions().dtype(torch::kDouble).device(test_world().device()));
  test_world().communicator().all_reduce(sum, Reduction::sum()).synchronize();
  return sum.item<double>();
}

TEST(ParameterShardsTest, EveryElementIsInOneShardOfEachReplica) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    const auto model = sharded_torture(way);
    const ShardedModel sharded(*model, "a test");
    const auto& shards = sharded.shards();
    const auto whole = full_parameters(model);
    ASSERT_EQ(shards.size(), whole.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      const auto& shard = shards[i];
      const auto& [name, full] = whole[i];
      SCOPED_TRACE(name);
      EXPECT_EQ(shard.name, name);
      EXPECT_EQ(at::IntArrayRef(shard.shape), full.sizes());
      const int64_t count = shard.main.numel();
      EXPECT_TRUE(at::equal(shard.main, full.reshape({-1}).narrow(0, shard.begin, count)));
      EXPECT_LT(shard.replica, shard.replicas);
      const double share = static_cast<double>(count) / static_cast<double>(shard.replicas);
      EXPECT_DOUBLE_EQ(sum_over_ranks(share), static_cast<double>(full.numel()));
    }
  }
}

TEST(ParameterShardsTest, TrainableOnesHaveGradientsAndComeInTheOrderOfNamedParameters) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    const auto model = sharded_torture(way);
    const ShardedModel sharded(*model, "a test");
    const auto trainable = trainable_only(sharded.shards());
    EXPECT_LT(trainable.size(), sharded.shards().size());
    for (const auto& shard : sharded.shards()) {
      ASSERT_EQ(shard.gradient.defined(), shard.trainable) << shard.name;
    }
    const auto named = named_parameters(model);
    ASSERT_EQ(trainable.size(), named.size());
    for (size_t i = 0; i < trainable.size(); ++i) {
      EXPECT_EQ(trainable[i].name, named[i].first);
      EXPECT_TRUE(trainable[i].main.is_same(named[i].second)) << trainable[i].name;
      EXPECT_EQ(trainable[i].gradient.numel(), trainable[i].main.numel()) << trainable[i].name;
    }
  }
}

TEST(ParameterShardsTest, OptimizerStateHasItsOwnElementsForEachShard) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    const auto model = sharded_torture(way);
    const auto shards = trainable_only(ShardedModel(*model, "a test").shards());
    const auto state = allocate_like_main(shards, torch::kFloat);
    ASSERT_EQ(state.pieces.size(), shards.size());
    int64_t count = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      EXPECT_EQ(state.pieces[i].sizes(), shards[i].main.sizes()) << shards[i].name;
      state.pieces[i].add_(1);
      count += state.pieces[i].numel();
    }
    double sum = 0;
    for (const auto& storage : state.storages) {
      EXPECT_LE(storage.max().item<double>(), 1);  // no element belongs to two shards
      sum += storage.sum().item<double>();
    }
    EXPECT_EQ(sum, static_cast<double>(count));
  }
}

TEST(ParameterShardsTest, EveryElementIsCountedByOneRank) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    const auto model = sharded_torture(way);
    const ShardedModel sharded(*model, "a test");
    const auto whole = full_parameters(model);
    for (size_t i = 0; i < sharded.shards().size(); ++i) {
      const auto& shard = sharded.shards()[i];
      EXPECT_EQ(shard.counted, shard.replica == 0 || is_emulated()) << shard.name;
      const auto mine = static_cast<double>(shard.counted ? shard.main.numel() : 0);
      EXPECT_EQ(sum_over_ranks(mine), static_cast<double>(whole[i].second.numel())) << shard.name;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
