// SPDX-License-Identifier: Apache-2.0
// What sharding costs the host: 128 units of four small linears, one rank of an emulated world of
// 8, forward and backward; the same model unsharded is taken off. Prints microseconds per unit and
// step.
#include <torch/cuda.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "sherd/comm/world.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace {

constexpr int64_t kUnits = 128;
constexpr int64_t kDim = 64;
constexpr int kSteps = 10;
constexpr int kRounds = 5;

template <class LinearHolder>
struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 4; ++i) {
      linears.push_back(register_module("linear" + std::to_string(i), LinearHolder(kDim, kDim)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& linear : linears) x = linear(x);
    return x;
  }
  std::vector<LinearHolder> linears;
};
using PlainStackImpl = StackImpl<torch::nn::Linear>;
using FusedStackImpl = StackImpl<sherd::Linear>;
SHERD_MODULE(PlainStack);
SHERD_MODULE(FusedStack);

template <class Stack>
struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    for (int64_t i = 0; i < kUnits; ++i) {
      stacks.push_back(register_module("stack" + std::to_string(i), Stack()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& stack : stacks) x = stack(x);
    return x.sum();
  }
  std::vector<Stack> stacks;
};
using PlainTowerImpl = TowerImpl<PlainStack>;
using FusedTowerImpl = TowerImpl<FusedStack>;
SHERD_MODULE(PlainTower);
SHERD_MODULE(FusedTower);

void synchronize(c10::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

/// Microseconds of a step, the median over rounds.
template <class Step>
double measure(c10::Device device, Step step) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    synchronize(device);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) step();
    synchronize(device);
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    rounds.push_back(taken.count() / kSteps);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

template <class Tower>
double unsharded(c10::Device device) {
  Tower tower;
  tower->to(device);
  const auto x = torch::randn({8, kDim}, device);
  return measure(device, [&] {
    tower(x).backward();
    tower->zero_grad();
  });
}

template <class Tower>
double sharded(c10::Device device, sherd::Strategy strategy) {
  const auto world = sherd::World::emulated({.rank = 3, .size = 8, .device = device});
  const sherd::Mesh mesh(world, {{"dp", 8}});
  Tower tower;
  tower->to(device);
  const sherd::ShardOptions options{.mesh = mesh, .placement = sherd::Placement(strategy)};
  for (auto& stack : tower->stacks) sherd::fully_shard(stack, options);
  sherd::fully_shard(tower, options);
  const auto x = torch::randn({8, kDim}, device);
  return measure(device, [&] {
    tower(x).backward();
    sherd::publish(tower);
    sherd::recorded_calls(world.communicator(), /*forget=*/true);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const c10::Device device(argc > 1 ? argv[1] : "cpu");
  const double plain = unsharded<PlainTower>(device);
  const double fused = unsharded<FusedTower>(device);
  std::printf("unsharded: %.0f us a step, with sherd::Linear %.0f us\n", plain, fused);
  std::printf("us per unit and step, unsharded taken off:\n");
  for (const auto strategy :
       {sherd::Strategy::no_shard, sherd::Strategy::optim, sherd::Strategy::optim_grads,
        sherd::Strategy::optim_grads_params}) {
    const double one = (sharded<PlainTower>(device, strategy) - plain) / kUnits;
    const double other = (sharded<FusedTower>(device, strategy) - fused) / kUnits;
    std::printf("%-20s %7.1f   with sherd::Linear %7.1f\n", to_text(strategy).c_str(), one, other);
    std::fflush(stdout);
  }
}
