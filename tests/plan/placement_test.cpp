// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/placement.h"

#include <gtest/gtest.h>

#include <set>

namespace sherd {
namespace {

constexpr Spreads kReplicate{Spread::replicate, Spread::replicate};
constexpr Spreads kInner{Spread::shard, Spread::replicate};
constexpr Spreads kBoth{Spread::shard, Spread::shard};

std::string refusal(const Placement::Roles& roles) {
  try {
    Placement placement(roles);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Placement, NamesTheStrategies) {
  EXPECT_EQ(Placement(Strategy::no_shard), Placement({kReplicate, kReplicate, kReplicate}));
  EXPECT_EQ(Placement(Strategy::optim), Placement({kReplicate, kReplicate, kInner}));
  EXPECT_EQ(Placement(Strategy::optim_grads), Placement({kReplicate, kInner, kInner}));
  EXPECT_EQ(Placement(Strategy::optim_grads_params), Placement({kInner, kInner, kInner}));
  const Placement hfsdp(Strategy::optim_grads_params, Strategy::optim);
  EXPECT_EQ(hfsdp, Placement({kInner, kInner, kBoth}));
  for (const auto* word : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    EXPECT_EQ(to_text(strategy_from(word)), word);
  }
  EXPECT_THROW(strategy_from("zero3"), std::invalid_argument);
}

TEST(Placement, RefusesIllegalMixesInWords) {
  EXPECT_NE(
      refusal({kInner, kReplicate, kInner}).find("parameter is sharded but the gradient is not"),
      std::string::npos);
  EXPECT_NE(
      refusal({kReplicate, kInner, kReplicate}).find("gradient is sharded but the optimizer"),
      std::string::npos);
  const Spreads outer_only{Spread::replicate, Spread::shard};
  EXPECT_NE(
      refusal({kReplicate, kReplicate, outer_only})
          .find("optimizer is sharded over the outer axis"),
      std::string::npos);
  EXPECT_NE(
      refusal({kReplicate, {Spread::partial, Spread::replicate}, kInner}).find("partial"),
      std::string::npos);
  EXPECT_THROW(Placement(Strategy::optim, Strategy::optim_grads_params), std::invalid_argument);
}

TEST(Placement, LeavesTenLegalMixesOverTwoAxes) {
  int legal = 0;
  const Spread both[] = {Spread::replicate, Spread::shard};
  for (int bits = 0; bits < 64; ++bits) {
    const auto pick = [&](int bit) { return both[bits >> bit & 1]; };
    legal += refusal({{pick(0), pick(1)}, {pick(2), pick(3)}, {pick(4), pick(5)}}).empty() ? 1 : 0;
  }
  EXPECT_EQ(legal, 10);  // four degrees inside, at most the same outside
}

TEST(Placement, CutsTheInnerAxisFirst) {
  const PerAxis<int64_t> sizes{3, 2};
  std::set<int64_t> seen;
  for (int64_t inner = 0; inner < 3; ++inner) {
    const auto coarse = part_of(kInner, sizes, {inner, 1});
    EXPECT_EQ(coarse.index, inner);
    EXPECT_EQ(coarse.count, 3);
    for (int64_t outer = 0; outer < 2; ++outer) {
      const auto fine = part_of(kBoth, sizes, {inner, outer});
      EXPECT_EQ(fine.count, 6);
      EXPECT_EQ(fine.index / 2, inner) << "a fine part lies inside the coarse one";
      seen.insert(fine.index);
    }
  }
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_EQ(part_of(kReplicate, sizes, {2, 1}).count, 1);
  EXPECT_THROW(part_of({Spread::partial, Spread::shard}, sizes, {0, 0}), std::invalid_argument);
  EXPECT_THROW(part_of(kInner, sizes, {3, 0}), std::invalid_argument);
}

TEST(Placement, CountsTheShardsOfTheFinestRole) {
  EXPECT_EQ(Placement(Strategy::no_shard).shards({4, 2}), 1);
  EXPECT_EQ(Placement(Strategy::optim).shards({4, 2}), 4);
  EXPECT_EQ(Placement(Strategy::optim_grads_params, Strategy::optim).shards({4, 2}), 8);
}

}  // namespace
}  // namespace sherd
