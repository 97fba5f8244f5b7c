// SPDX-License-Identifier: Apache-2.0
#include "bench/small_units.h"

#include <ATen/ops/randn.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "comm/emulated/recorded_calls.h"
#include "device/timing.h"
#include "sherd/comm/world.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "sherd/shard/step_graph.h"

namespace sherd::app {
namespace {

constexpr int64_t kWidth = 64;
constexpr int64_t kRanks = 8;

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 4; ++i) {
      linears.push_back(register_module("linear" + std::to_string(i), Linear(kWidth, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& linear : linears) x = linear(x);
    return x;
  }
  std::vector<Linear> linears;
};
SHERD_MODULE(Stack);

struct TowerImpl : torch::nn::Module {
  explicit TowerImpl(int64_t units) {
    for (int64_t i = 0; i < units; ++i) {
      stacks.push_back(register_module("stack" + std::to_string(i), Stack()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& stack : stacks) x = stack(x);
    return x.sum();
  }
  std::vector<Stack> stacks;
};
SHERD_MODULE(Tower);

Tower sharded_tower(int64_t units, const World& world) {
  Tower tower(units);
  tower->to(world.device());
  const UnitOptions options{.mesh = Mesh(world, {{"dp", kRanks}})};
  for (auto& stack : tower->stacks) fully_shard(stack, options);
  fully_shard(tower, options);
  return tower;
}

using Clock = std::chrono::steady_clock;

}  // namespace

SmallUnitsResult time_small_units(c10::Device device, const SmallUnits& options) {
  const auto world = World::emulated({.size = kRanks, .device = device});
  auto tower = sharded_tower(options.units, world);
  const auto x = at::randn({1, kWidth}, at::TensorOptions().device(device));
  tower(x).backward();
  const double norm = gradient_norm(tower);
  // Steps are timed without an optimizer; a first one that writes no weight would be warned of.
  for (auto& weight : parameters(tower)) weight.detach().mul_(1);
  publish(tower);

  at::Tensor loss;
  std::optional<StepGraph> graph;
  const auto pass = [&] {
    loss = tower(x);
    loss.backward();
    publish(tower);
  };
  const auto step = [&] {
    graph ? graph->replay() : pass();
    recorded_calls(world.communicator(), /*forget=*/true);
  };
  if (options.graph) {
    graph.emplace(*tower);
    graph->on_stream(pass);
    graph->capture(pass);
  }
  const auto begin = Clock::now();
  do {
    step();
    loss.item<double>();
  } while (seconds_since(begin) < options.load);
  SmallUnitsResult result;
  std::vector<double> seconds, host;
  for (int64_t i = 0; i < std::max<int64_t>(1, options.steps); ++i) {
    const auto start = Clock::now();
    step();
    host.push_back(seconds_since(start));
    const double value = loss.item<double>();  // waits for the passes
    finish(tower);
    seconds.push_back(seconds_since(start));
    result.steps.push_back({seconds.back(), value, norm});
  }
  result.seconds = median(seconds);
  result.host = median(host);
  return result;
}

}  // namespace sherd::app
