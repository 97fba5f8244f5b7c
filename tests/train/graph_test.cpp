// SPDX-License-Identifier: Apache-2.0
// A step as a graph, and symmetric memory, give the losses that they give without.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ranks/rank_world.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "sherd/shard/step_graph.h"
#include "train/graphed_steps.h"
#include "train/optimizer.h"
#include "train/setup.h"

namespace sherd::testing {
namespace {

struct Way {
  bool graph = false;
  bool symmetric = false;
  std::string kind = "llama";
  int64_t outer = 1;
  std::string outer_strategy = "no_shard";
  std::string recompute = "none";
};

Configuration graphed_configuration(const Way& way) {
  Configuration all;
  all.model.kind = way.kind;
  all.model.dim = 64;
  all.model.layers = 4;
  all.model.heads = 4;
  all.model.kv_heads = 2;
  all.model.vocab = 128;
  all.data.seq = 32;
  all.data.micro_batches = 2;
  all.shard.outer = way.outer;
  all.shard.outer_strategy = way.outer_strategy;
  all.memory.symmetric = way.symmetric;
  all.precision.recipe = "bf16_o2";
  all.train.recompute = way.recompute;
  all.optim.clip = 1.0;
  all.model = resolved(all.model);
  return all;
}

/// The losses of some steps, whose rate changes, and the weights' norm after them.
std::vector<double> losses(const Way& way, int64_t steps) {
  const auto configuration = graphed_configuration(way);
  const auto& world = test_world();
  const auto model = model_of(configuration, mesh_of(configuration.shard, world));
  AdamW optimizer(*model, optimizer_of(configuration, *model));
  std::optional<GraphedSteps> graph;
  if (way.graph) graph.emplace(*model);
  if (way.symmetric) {
    EXPECT_NE(symmetric_report(*model), "");
  }
  std::vector<double> result;
  const auto numbers = at::TensorOptions().dtype(at::kLong).device(world.device());
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<Batch> batches;
    for (int64_t i = 0; i < 2; ++i) {
      const auto row = (at::arange(33, numbers) * (step + 3) + i + 7 * world.rank()) % 128;
      batches.push_back({row.narrow(0, 0, 32).view({1, 32}), row.narrow(0, 1, 32).view({1, 32})});
    }
    optimizer.set_rate(1e-3 * static_cast<double>(1 + step % 5));
    const auto make = [&](const std::vector<Batch>& given, at::Tensor& sum) {
      for (const auto& batch : given) {
        const auto loss = call(*model, batch);
        sum += loss.detach();
        (loss / 64).backward();
      }
      optimizer.step();
    };
    at::Tensor sum;
    if (graph) {
      sum = graph->run(batches, make);
    } else {
      sum = at::zeros({1}, numbers.dtype(at::kDouble));
      make(batches, sum);
    }
    result.push_back(sum.item<double>());
    result.push_back(optimizer.gradient_norm());
  }
  return result;
}

class GraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_world().device().is_cuda()) GTEST_SKIP() << "graphs are of GPUs";
  }
};

constexpr int64_t kSteps = 20;

TEST_F(GraphTest, ReplaysGiveTheLossesOfEagerStepsBitForBit) {
  for (const char* recompute : {"none", "full", "selective"}) {
    EXPECT_EQ(
        losses({.graph = true, .recompute = recompute}, kSteps),
        losses({.recompute = recompute}, kSteps))
        << recompute;
  }
}

TEST_F(GraphTest, ModelsWithExpertsAndMambaCanBeCaptured) {
  for (const char* kind : {"moe", "hybrid"}) {
    EXPECT_EQ(losses({.graph = true, .kind = kind}, 6), losses({.kind = kind}, 6)) << kind;
  }
}

TEST_F(GraphTest, SymmetricMemoryGivesTheSameLossesWithAndWithoutAGraph) {
  const auto plain = losses({}, kSteps);
  EXPECT_EQ(losses({.symmetric = true}, kSteps), plain);
  EXPECT_EQ(losses({.graph = true, .symmetric = true}, kSteps), plain);
}

TEST_F(GraphTest, TwoAxesCanBeCaptured) {
  const int64_t ranks = test_world().size();
  if (ranks % 2 != 0) GTEST_SKIP() << "one rank has one axis";
  for (const char* outer : {"no_shard", "optim", "optim_grads_params"}) {
    for (const int64_t groups : {int64_t{2}, ranks}) {
      EXPECT_EQ(
          losses({.graph = true, .outer = groups, .outer_strategy = outer}, 8),
          losses({.outer = groups, .outer_strategy = outer}, 8))
          << outer;
    }
  }
}

TEST_F(GraphTest, WhatCannotBeCapturedIsRefusedWithTheReason) {
  auto configuration = graphed_configuration({});
  configuration.memory.kind = "eager";
  const auto model = model_of(configuration, mesh_of(configuration.shard, test_world()));
  try {
    const StepGraph graph(*model);
    FAIL() << "eager memory was captured";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(std::string(error.what()).find("its memory is eager"), std::string::npos);
  }
}

}  // namespace
}  // namespace sherd::testing
