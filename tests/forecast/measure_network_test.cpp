// SPDX-License-Identifier: Apache-2.0
#include "forecast/measure_network.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

TEST(FitLinkTest, FindsTheLinkThatMadeTheTimes) {
  const Link link{50e-6, 2e9};
  std::vector<TimedCollective> timed;
  for (const int64_t bytes : {1LL << 16, 1LL << 20, 1LL << 26}) {
    const double time = seconds(link, Collective::all_gather, bytes, 4);
    timed.push_back({Collective::all_gather, bytes, 0.8 * time});  // the mean counts
    timed.push_back({Collective::reduce_scatter, bytes, 1.2 * time});
  }
  const auto found = fit_link(timed, 4);
  EXPECT_NEAR(found.latency, link.latency, 1e-9);
  EXPECT_NEAR(found.bandwidth, link.bandwidth, 1e3);
}

TEST(FitLinkTest, IsNeverNegative) {
  const auto faster =
      fit_link({{Collective::all_gather, 1000, 1e-6}, {Collective::all_gather, 1000000, 2e-2}}, 2);
  EXPECT_EQ(faster.latency, 0);
  EXPECT_GT(faster.bandwidth, 0);
  const auto flat =
      fit_link({{Collective::all_gather, 1000, 2e-3}, {Collective::all_gather, 1000000, 1e-3}}, 2);
  EXPECT_GT(flat.latency, 0);
  EXPECT_EQ(flat.bandwidth, 1e15);
}

TEST(MeasureNetworkTest, FindsTheNetworkOfAnEmulatedWorld) {
  Network network;
  network.fallback = {2e-3, 2e9};
  const auto world = World::emulated({.rank = 1, .size = 4, .network = network});
  std::vector<TimedLink> timed;
  const auto file = measure_network(world, &timed);
  EXPECT_EQ(file.name, "measured: 4 ranks over emulated");
  EXPECT_TRUE(file.overlaps);
  ASSERT_EQ(timed.size(), 1u);
  EXPECT_EQ(timed[0].collectives.size(), 8u);
  EXPECT_EQ(file.node, 0) << "one machine";
  // Wide: others may have the cores for a while.
  EXPECT_NEAR(file.inside.latency, 2e-3, 1e-3);
  EXPECT_NEAR(file.inside.bandwidth, 2e9, 1e9);
}

TEST(MeasureNetworkTest, OneRankHasNoNetwork) {
  EXPECT_THROW(measure_network(World::emulated({.size = 1})), c10::ValueError);
}

}  // namespace
}  // namespace sherd
