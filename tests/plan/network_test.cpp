// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/network.h"

#include <gtest/gtest.h>

namespace sherd {
namespace {

TEST(Network, CountsTheBytesOfTheRingAlgorithms) {
  EXPECT_EQ(wire_bytes(Collective::all_gather, 800, 8), 700);
  EXPECT_EQ(wire_bytes(Collective::reduce_scatter, 800, 8), 700);
  EXPECT_EQ(wire_bytes(Collective::all_reduce, 800, 8), 1400);
  EXPECT_EQ(wire_bytes(Collective::broadcast, 800, 8), 800);
  EXPECT_EQ(wire_bytes(Collective::barrier, 0, 8), 0);
  EXPECT_EQ(wire_bytes(Collective::all_gather, 800, 1), 0);
}

TEST(Network, PricesLatencyAndBytes) {
  const Link link{.latency = 1e-5, .bandwidth = 1e9};
  EXPECT_DOUBLE_EQ(seconds(link, Collective::all_gather, 8'000'000, 8), 1e-5 + 7e-3);
  EXPECT_DOUBLE_EQ(seconds(link, Collective::all_gather, 8'000'000, 1), 0);
  EXPECT_DOUBLE_EQ(
      seconds({.latency = 1e-5, .bandwidth = 0}, Collective::all_reduce, 800, 2), 1e-5);
  Network network{{{"dp", link}}, {.latency = 1, .bandwidth = 0}};
  EXPECT_DOUBLE_EQ(network.link("dp").latency, 1e-5);
  EXPECT_DOUBLE_EQ(network.link("tp").latency, 1);
}

}  // namespace
}  // namespace sherd
