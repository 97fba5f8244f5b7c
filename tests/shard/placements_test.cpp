// SPDX-License-Identifier: Apache-2.0
// Every legal pair of strategies over two axes, the outer axis replicated or sharded, trains like
// the unsharded model and promises the traffic that follows from its spreads.
#include "shard/twin.h"

namespace sherd::testing {
namespace {

constexpr int64_t kMicroBatches = 2;

std::vector<ShardingCase> pairs_of_strategies() {
  using enum Strategy;
  const std::vector<Strategy> all{no_shard, optim, optim_grads, optim_grads_params};
  std::vector<ShardingCase> result;
  for (const auto inner : all) {
    for (const auto outer : all) {
      if (outer > inner) continue;  // refused: the inner axis is cut first
      result.push_back({to_text(inner) + "_over_" + to_text(outer), Placement(inner, outer), true});
    }
  }
  return result;
}

/// The bytes of a step in fp32, worked out from the spreads alone, without the program.
StepTraffic expected_traffic(const Placement& placement, int64_t elements, int64_t inner) {
  const auto is_sharded = [&](Role role, bool outer) {
    const auto& spreads = placement.spreads(role);
    return (outer ? spreads.outer : spreads.inner) == Spread::shard;
  };
  const int64_t full = elements * 4;
  int64_t gathered = 0, scattered = 0, reduced = 0;
  const auto add = [&](bool outer, int64_t bytes) {
    // What is sharded is gathered in each forward and backward; else refreshed once in a step.
    if (is_sharded(Role::parameter, outer)) {
      gathered += 2 * kMicroBatches * bytes;
    } else if (is_sharded(Role::optimizer, outer)) {
      gathered += bytes;
    }
    const int64_t times = is_sharded(Role::gradient, outer) ? kMicroBatches : 1;
    (is_sharded(Role::optimizer, outer) ? scattered : reduced) += times * bytes;
  };
  add(false, full);
  add(true, is_sharded(Role::optimizer, false) ? full / inner : full);
  StepTraffic traffic;
  traffic.all_gather.bytes = gathered;
  traffic.reduce_scatter.bytes = scattered;
  traffic.all_reduce.bytes = reduced;
  return traffic;
}

class PlacementsTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(PlacementsTest, TrainLikeUnshardedAndPromiseTheBytesOfTheirSpreads) {
  const auto& way = GetParam();
  Twin twin(options_for(way));
  micro_batches(twin.model, kMicroBatches);
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    for (int64_t i = 0; i < kMicroBatches; ++i) train_once(model, rank, step, i);
  });
  int64_t elements = 0;  // padding included
  for (const auto& unit : program(twin.model).units()) {
    for (const auto& group : unit.groups) elements += group.elements;
  }
  const auto expected = expected_traffic(way.placement, elements, mesh_for(way).size("dp"));
  const auto planned = program(twin.model).traffic();
  EXPECT_EQ(planned.all_gather.bytes, expected.all_gather.bytes);
  EXPECT_EQ(planned.reduce_scatter.bytes, expected.reduce_scatter.bytes);
  EXPECT_EQ(planned.all_reduce.bytes, expected.all_reduce.bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, PlacementsTest, ::testing::ValuesIn(pairs_of_strategies()), [](const auto& way) {
      return way.param.name;
    });

}  // namespace
}  // namespace sherd::testing
