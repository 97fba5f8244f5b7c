// SPDX-License-Identifier: Apache-2.0
// A search proposes what a plan of every arrangement would.
#include "forecast/search.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "configuration/setup.h"
#include "forecast/scaled_plan.h"
#include "forecast/search_space.h"

namespace sherd {
namespace {

constexpr int64_t kRanks = 8;
constexpr int64_t kSequences = 16;

NetworkFile slow_network() {
  NetworkFile file;
  file.name = "two nodes";
  file.node = 4;
  file.inside = {.latency = 1e-6, .bandwidth = 2e9};
  file.between = {.latency = 5e-6, .bandwidth = 4e8};
  file.device = {.tflops = 0.05, .memory_bandwidth = 1e10, .memory = int64_t{1} << 40};
  return file;
}

Configuration small_model(const std::string& kind, int64_t layers) {
  Configuration all;
  all.model.kind = kind;
  all.model.dim = 64;
  all.model.layers = layers;
  all.model.heads = 4;
  all.model.kv_heads = 2;
  all.model.vocab = 512;
  all.model.experts = 4;
  all.model.expert_ffn = 32;
  all.model.pattern = "M*-";
  all.model.ssm_head_dim = 16;
  all.data.seq = 64;
  all.data.tokens = "tokens.bin";
  all.device.kind = "cpu";
  all.model = resolved(all.model);
  return all;
}

SearchOptions searching(int64_t rows = 10) {
  return {.ranks = kRanks, .network = slow_network(), .sequences = kSequences, .rows = rows};
}

RunPlan plan_of(const Configuration& configuration) {
  return plan_run(configuration, {.ranks = kRanks, .network = slow_network()});
}

TEST(SearchTest, RowsAreWhatPlansOfThemSay) {
  for (const auto& kind : {"llama", "moe"}) {
    const auto result = search_plans(small_model(kind, 6), searching(6));
    ASSERT_EQ(result.rows.size(), 6u) << kind;
    double before = 0;
    for (const auto& row : result.rows) {
      const auto plan = plan_of(row.configuration);
      EXPECT_EQ(row.plan.bytes, plan.ledger.planned());
      EXPECT_EQ(row.plan.seconds, plan.timeline->seconds);
      EXPECT_EQ(row.plan.exposed, plan.timeline->exposed_total());
      EXPECT_EQ(row.plan.tokens_per_second, plan.tokens_per_second);
      EXPECT_GE(row.plan.seconds, before);
      before = row.plan.seconds;
      EXPECT_EQ(sequences_of_step(row.configuration, kRanks), kSequences);
    }
  }
}

/// Plans of every arrangement of four ranks and sequences, in some of the ways to make it fit.
std::vector<WorldPlan> plans_of_all(const Configuration& configuration) {
  std::vector<WorldPlan> result;
  for (const auto& one : search_space(configuration, 4, 4, 4).arrangements) {
    auto tried = arranged(configuration, one);
    for (const int64_t depth : {1, 2}) {
      for (const int64_t recomputed : {-1, 0, 1, 2}) {  // none, all, the first
        tried.shard.prefetch = depth;
        tried.train.recompute = recomputed < 0 ? "none" : "full";
        tried.train.recompute_layers = std::max<int64_t>(recomputed, 0);
        result.push_back(in_short(plan_run(tried, {.ranks = 4, .network = slow_network()})));
      }
    }
  }
  return result;
}

double shortest_within(const std::vector<WorldPlan>& plans, int64_t memory) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& plan : plans) {
    if (plan.bytes <= memory) best = std::min(best, plan.seconds);
  }
  return best;
}

/// From where all fits to where little does.
TEST(SearchTest, TheFirstRowIsTheShortestOfAll) {
  auto configuration = small_model("llama", 3);
  configuration.data.seq = 32;
  auto all = plans_of_all(configuration);
  std::sort(all.begin(), all.end(), [](const WorldPlan& one, const WorldPlan& other) {
    return one.bytes < other.bytes;
  });
  const int64_t least = all.front().bytes, most = all.back().bytes;
  for (const int64_t percent : {103, 110, 125, 150, 200}) {
    const int64_t memory = std::min(least * percent / 100, most);
    configuration.memory.budget = std::to_string(memory);
    const auto result = search_plans(
        configuration, {.ranks = 4, .network = slow_network(), .sequences = 4, .rows = 1});
    const auto& found = result.rows.front().plan;
    EXPECT_LE(found.bytes, memory);
    EXPECT_LE(found.seconds, shortest_within(all, memory) * 1.001) << memory;
    if (result.too_large > 0) {
      EXPECT_GT(result.least_bytes, memory);
    }
  }
}

TEST(SearchTest, EstimatesAreCloseToPlans) {
  for (const auto& kind : {"llama", "moe", "hybrid"}) {
    const auto configuration = small_model(kind, 18);
    ScaledPlans plans(
        configuration, kRanks, {.ranks = kRanks, .network = slow_network()}, int64_t{1} << 40);
    int64_t number = 0;
    for (const auto& one : search_space(configuration, kRanks, kSequences, 4).arrangements) {
      if (++number % 17 != 0) continue;
      auto tried = arranged(configuration, one);
      const auto close = plans.close(one);
      tried.shard.prefetch = close.prefetch;
      const auto plan = plan_of(tried);
      const auto percent = static_cast<double>(plan.ledger.planned()) / 100;
      EXPECT_NEAR(close.seconds / plan.timeline->seconds, 1, 1e-3) << to_text(one);
      // Parts are padded for the ranks of all groups together.
      EXPECT_NEAR(static_cast<double>(close.bytes - plan.ledger.planned()), 0, percent)
          << to_text(one);
      const auto rough = plans.rough(one);
      tried.shard.prefetch = 1;
      const auto usual = plan_of(tried);
      EXPECT_NEAR(rough.seconds / usual.timeline->seconds, 1, 0.05) << to_text(one);
      EXPECT_NEAR(
          static_cast<double>(rough.bytes) / static_cast<double>(usual.ledger.planned()), 1, 0.05)
          << to_text(one);
    }
    EXPECT_GT(number, 100);
  }
}

TEST(SearchTest, ReasonsAgainstTheOthersAddUp) {
  auto configuration = small_model("llama", 4);
  const auto roomy = search_plans(configuration, searching(1)).rows.front().plan;
  configuration.memory.budget = std::to_string(roomy.bytes);
  const auto result = search_plans(configuration, searching(3));
  const auto space = search_space(configuration, kRanks, kSequences, 4);
  EXPECT_EQ(
      std::ssize(result.rows) + result.slower + result.too_large, std::ssize(space.arrangements));
  EXPECT_GT(result.too_large, 0);
  EXPECT_GT(result.least_bytes, roomy.bytes);
  std::map<std::string, int64_t> refused;
  for (const auto& one : result.refused) refused[one.reason] = one.count;
  EXPECT_EQ(refused, space.refused);
  EXPECT_TRUE(refused.contains("parallel.tp = 4: it must divide model.kv_heads = 2"));
  const auto text = result.to_text();
  for (const char* part :
       {"the others\n", "do not fit, by about ", "can't be used: parallel.tp = 4",
        "the first of them: --set '"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

/// What a run could not have is a reason, not the end of the search.
TEST(SearchTest, ArrangementsThatModelsCanNotHaveAreRefused) {
  const SearchOptions options{.ranks = 4, .network = slow_network(), .sequences = 4, .rows = 2};
  const auto reasons = [&](const Configuration& configuration) {
    std::string all;
    for (const auto& one : search_plans(configuration, options).refused) all += one.reason + "\n";
    return all;
  };
  auto olmoe = small_model("moe", 2);
  olmoe.model.qk_norm = olmoe.model.qk_norm_across = true;
  EXPECT_NE(reasons(olmoe).find("model.qk_norm_across"), std::string::npos);
  auto fp8 = small_model("llama", 2);
  fp8.precision.recipe = "fp8";
  fp8.model.ffn = 48;  // 24 columns for each of two
  EXPECT_NE(reasons(fp8).find("feed_forward.down.weight must have"), std::string::npos);
}

/// Patterns are those of the whole model, which estimates have a few layers of.
TEST(SearchTest, WeightsKeptInWiderDtypesMayBeOfAnyLayer) {
  auto configuration = small_model("llama", 12);
  configuration.precision.recipe = "fp8";
  configuration.precision.keep = {"layer0.*", "layer11.*"};
  const SearchOptions options{.ranks = 2, .network = slow_network(), .sequences = 2, .rows = 2};
  const auto result = search_plans(configuration, options);
  ASSERT_EQ(result.rows.size(), 2u);
  for (const auto& row : result.rows) {
    EXPECT_EQ(row.configuration.precision.keep, configuration.precision.keep);
  }
  configuration.precision.keep.emplace_back("layer12.*");
  try {
    search_plans(configuration, options);
    ADD_FAILURE();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(
        error.msg().find("precision.keep has \"layer12.*\", which matches no weight"),
        std::string::npos)
        << error.msg();
  }
}

TEST(SearchTest, WhatCanNotBeSearchedIsRefused) {
  const auto refused = [](const Configuration& configuration, const SearchOptions& options) {
    try {
      search_plans(configuration, options);
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing");
  };
  auto configuration = small_model("llama", 4);
  auto options = searching();
  options.network.device.tflops = 0;
  EXPECT_NE(refused(configuration, options).find("no [device] tflops"), std::string::npos);
  options = searching();
  options.network.device.memory = 0;
  EXPECT_NE(refused(configuration, options).find("set memory.budget"), std::string::npos);
  configuration.memory.budget = "1KiB";
  const auto text = refused(configuration, options);
  EXPECT_NE(text.find("no arrangement of 8 ranks fits 1.0 KiB"), std::string::npos) << text;
  EXPECT_NE(text.find("needs about "), std::string::npos) << text;
}

}  // namespace
}  // namespace sherd
