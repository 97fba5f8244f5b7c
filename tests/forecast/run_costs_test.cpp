// SPDX-License-Identifier: Apache-2.0
// Times that are estimated from the operations of a model and the speed of a device.
#include "forecast/run_costs.h"

#include <gtest/gtest.h>

#include <map>

#include "configuration/setup.h"

namespace sherd {
namespace {

Configuration llama_of_two(const std::string& recipe) {
  Configuration all;
  all.model.dim = 256;
  all.model.layers = 2;
  all.model.heads = 4;
  all.model.kv_heads = 2;
  all.model.ffn = 512;
  all.model.vocab = 1024;
  all.data.seq = 128;
  all.data.batch = 2;
  all.precision.recipe = recipe;
  all.device.kind = "cpu";
  all.model = resolved(all.model);
  return all;
}

/// By unit, in seconds.
std::map<std::string, UnitTime> times_of(const Configuration& configuration, double tflops_fp8) {
  NetworkFile network;
  network.device = {.tflops = 2, .tflops_fp8 = tflops_fp8};
  const auto plan = plan_run(configuration, {.ranks = 2, .network = network});
  std::map<std::string, UnitTime> result;
  for (size_t i = 0; i < plan.times.size(); ++i) {
    result[plan.program.units()[i].name] = plan.times[i];
  }
  return result;
}

constexpr double kTokens = 2 * 128;
// Of a token in a layer: queries, keys and values, their output; gate and up, down; attention.
constexpr double kAttentionProducts = 2.0 * 256 * (256 + 2 * 128) + 2.0 * 256 * 256;
constexpr double kGateUp = 2.0 * 256 * 2 * 512;
constexpr double kProducts = kAttentionProducts + kGateUp + 2.0 * 256 * 512;

void expect_times(const UnitTime& found, double forward, double backward, const char* what) {
  EXPECT_NEAR(found.forward * 1e6, forward * 1e6, 1e-9) << what;
  EXPECT_NEAR(found.backward * 1e6, backward * 1e6, 1e-9) << what;
}

TEST(RunCostsTest, ProductsInFp8HaveASpeedOfTheirOwn) {
  const auto wide = times_of(llama_of_two("bf16_o2"), 8).at("layer0");
  expect_times(wide, wide.forward, 2 * wide.forward, "bf16");
  // Products in fp8 take a quarter of the time; attention and the head are as fast as before.
  const double saved = kTokens * kProducts * (1 / 2e12 - 1 / 8e12);
  ASSERT_GT(wide.forward, saved);
  for (const char* recipe : {"fp8", "fp8_block"}) {
    const auto narrow = times_of(llama_of_two(recipe), 8);
    expect_times(narrow.at("layer0"), wide.forward - saved, wide.backward - 2 * saved, recipe);
    const auto head = times_of(llama_of_two("bf16_o2"), 8).at("head");
    expect_times(narrow.at("head"), head.forward, head.backward, "head");
    const auto unknown = times_of(llama_of_two(recipe), 0).at("layer0");
    expect_times(unknown, wide.forward, wide.backward, "no speed is given");
  }
  const auto wgrad16 = times_of(llama_of_two("fp8_wgrad16"), 8).at("layer0");
  expect_times(wgrad16, wide.forward - saved, wide.backward - saved, "fp8_wgrad16");
  const auto emulated = times_of(llama_of_two("mxfp8"), 8).at("layer0");
  expect_times(emulated, wide.forward, wide.backward, "mxfp8");
}

TEST(RunCostsTest, WhatIsKeptOrRecomputedCountsByItsDtype) {
  const auto wide = times_of(llama_of_two("bf16_o2"), 8).at("layer0");
  const double saved = kTokens * (1 / 2e12 - 1 / 8e12);  // by an operation of a token
  auto configuration = llama_of_two("fp8");
  configuration.precision.keep = {"layer0.attention.*"};
  const auto kept = times_of(configuration, 8);
  const double less = saved * (kProducts - kAttentionProducts);
  expect_times(kept.at("layer0"), wide.forward - less, wide.backward - 2 * less, "layer0");
  const double all = saved * kProducts;
  const auto layer = kept.at("layer1");
  expect_times(layer, wide.forward - all, wide.backward - 2 * all, "layer1");

  configuration.train.recompute = "selective";
  const double gate_up = kTokens * kGateUp / 8e12;
  expect_times(
      times_of(configuration, 8).at("layer1"), layer.forward, layer.backward + gate_up,
      "selective");
  configuration.train.recompute = "full";
  expect_times(
      times_of(configuration, 8).at("layer1"), layer.forward, layer.backward + layer.forward,
      "full");
}

/// With ranks that share sequences, each has fewer tokens and part of the weights.
TEST(RunCostsTest, PartsOfWeightsCountForAllTokensOfTheirRanks) {
  auto configuration = llama_of_two("fp8");
  const auto whole = times_of(configuration, 8).at("layer0");
  configuration.parallel.tp = 2;
  expect_times(
      times_of(configuration, 8).at("layer0"), whole.forward / 2, whole.backward / 2, "tp");
}

}  // namespace
}  // namespace sherd
