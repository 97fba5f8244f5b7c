// SPDX-License-Identifier: Apache-2.0
// Ranks that should hold the same elements compare them: a bit that flips on one of them is named.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ranks/rank_world.h"
#include "shard/diagnostics/replicas.h"
#include "shard/runtime/runtime.h"
#include "shard/twin.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

/// Flips the lowest bit of the first element.
void flip_bit(const at::Tensor& elements) {
  at::NoGradGuard no_grad;
  auto first = elements.detach().narrow(0, 0, 1);
  const auto bits = first.view(elements.element_size() == 4 ? at::kInt : at::kShort);
  bits.bitwise_xor_(1);
}

const ParameterShard& shard_of(Chain& model, const std::string& name) {
  for (const auto& shard : Runtime::of_model(*model, "test")->shards()) {
    if (shard.name == name) return shard;
  }
  throw std::runtime_error("no parameter " + name);
}

std::vector<int64_t> all_ranks() {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < test_world().size(); ++rank) ranks.push_back(rank);
  return ranks;
}

/// Expects that the difference of one rank is found, whatever else the others hold.
void expect_named(
    const std::vector<ReplicaDifference>& found,
    const std::string& parameter,
    const std::string& weight,
    int64_t odd,
    const std::vector<int64_t>& holders) {
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].parameter, parameter);
  EXPECT_EQ(found[0].weight, weight);
  if (holders.size() == 2) {
    EXPECT_EQ(found[0].ranks, holders) << "two replicas alone don't tell which is right";
    EXPECT_TRUE(found[0].others.empty());
    return;
  }
  EXPECT_EQ(found[0].ranks, (std::vector<int64_t>{odd}));
  EXPECT_EQ(found[0].others.size(), holders.size() - 1);
  EXPECT_NE(
      found[0].text().find("on rank " + std::to_string(odd) + " is not that of"), std::string::npos)
      << found[0].text();
}

/// Trains two steps, and makes the passes of a third one, after which replicas are complete.
void train_and_verify(Chain& model, AdamW& optimizer) {
  for (int64_t step = 0; step < 3; ++step) {
    if (step > 0) optimizer.step();
    EXPECT_TRUE(verify_replicas(model).empty()) << "before step " << step;
    train_once(model, test_world().rank(), step);
    EXPECT_TRUE(verify_replicas(model).empty()) << "in step " << step;
  }
}

TEST(Replicas, AreEqualInAHealthyRunOfEveryPlacement) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    for (const char* recipe : {"fp32", "bf16_o2"}) {
      auto options = options_for(way);
      options.precision = Precision::recipe(recipe);
      Twin twin(options);
      AdamW optimizer(twin.model, {});
      train_and_verify(twin.model, optimizer);
    }
  }
}

TEST(Replicas, AFlippedBitOfAReplicatedWeightIsNamed) {
  Twin twin(options_for(way_called("no_shard")));
  AdamW optimizer(twin.model, {});
  train_and_verify(twin.model, optimizer);
  const int64_t odd = test_world().size() - 1;
  const auto& shard = shard_of(twin.model, "in.weight");
  if (test_world().rank() == odd) flip_bit(shard.main);
  expect_named(verify_replicas(twin.model), "in.weight", "main weight", odd, all_ranks());
  if (test_world().rank() == odd) flip_bit(shard.main);
  EXPECT_TRUE(verify_replicas(twin.model).empty());
}

TEST(Replicas, AFlippedBitOfAModelWeightIsNamedWhereTheOptimizerIsSharded) {
  Twin twin(options_for(way_called("optim_grads")));
  AdamW optimizer(twin.model, {});
  train_and_verify(twin.model, optimizer);
  // What another rank updates: this rank's own part is its main weight, which no other rank has.
  const auto runtime = Runtime::of_model(*twin.model, "test");
  for (const auto& item : replica_items(runtime->units().all(), /*refreshed=*/true)) {
    if (test_world().rank() != 0 || item.parameter != "in.weight") continue;
    if (std::string(item.weight) != "model weight") continue;
    const auto flat = item.elements.flatten();
    flip_bit(flat.narrow(0, flat.numel() - 1, 1));
  }
  expect_named(verify_replicas(twin.model), "in.weight", "model weight", 0, all_ranks());
  optimizer.step();  // from here on each rank has only its own new elements
  EXPECT_TRUE(verify_replicas(twin.model).empty());
}

TEST(Replicas, AFlippedBitInAReplicaOfHsdpIsNamed) {
  const auto way = way_called("HSDP");
  Twin twin(options_for(way));
  AdamW optimizer(twin.model, {});
  train_and_verify(twin.model, optimizer);
  const auto mesh = mesh_for(way);
  const int64_t inner = mesh.communicator("dp").size();
  if (inner == test_world().size()) return;  // three ranks can't be two groups
  const int64_t odd = test_world().size() - 1;
  // One of which that rank has elements: it tells the others which.
  const auto& shards = Runtime::of_model(*twin.model, "test")->shards();
  int64_t index = 0;
  while (shards[static_cast<size_t>(index)].main.numel() == 0) ++index;
  const auto agreed = at::full({1}, index, at::kLong).to(test_world().device());
  test_world().communicator().broadcast(agreed, odd).synchronize();
  const auto& shard = shards[static_cast<size_t>(agreed.item<int64_t>())];
  if (test_world().rank() == odd) flip_bit(shard.main);
  expect_named(verify_replicas(twin.model), shard.name, "main weight", odd, {odd - inner, odd});
}

}  // namespace
}  // namespace sherd::testing
