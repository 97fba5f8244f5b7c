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

#include "comm/emulated/recorded_calls.h"
#include "sherd/comm/world.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace {

constexpr int64_t kUnits = 128;
constexpr int64_t kDim = 64;
constexpr int kSteps = 4;
constexpr int kRounds = 15;

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

/// Runs steps of one of two models in turn, so that a change of the machine's speed meets both.
class Contest {
 public:
  explicit Contest(c10::Device device) : device_(device) {}

  template <class Step>
  double round(Step step) const {
    synchronize(device_);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) step();
    synchronize(device_);
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    return taken.count() / kSteps;
  }

  /// The median of the differences, in microseconds a step.
  template <class One, class Other>
  double difference(One one, Other other) const {
    std::vector<double> rounds;
    for (int i = 0; i < kRounds + 1; ++i) {
      const double first = round(one);
      const double taken = round(other) - first;
      if (i > 0) rounds.push_back(taken);
    }
    std::sort(rounds.begin(), rounds.end());
    return rounds[rounds.size() / 2];
  }

 private:
  c10::Device device_;
};

template <class Tower>
double cost_per_unit(c10::Device device, sherd::Strategy strategy) {
  const auto world = sherd::World::emulated({.rank = 3, .size = 8, .device = device});
  const sherd::Mesh mesh(world, {{"dp", 8}});
  Tower plain;
  plain->to(device);
  Tower tower;
  tower->to(device);
  const sherd::UnitOptions options{.mesh = mesh, .placement = sherd::Placement(strategy)};
  for (auto& stack : tower->stacks) sherd::fully_shard(stack, options);
  sherd::fully_shard(tower, options);
  const auto x = torch::randn({8, kDim}, device);
  const double taken = Contest(device).difference(
      [&] {
        plain(x).backward();
        plain->zero_grad();
      },
      [&] {
        tower(x).backward();
        sherd::publish(tower);
        sherd::recorded_calls(world.communicator(), /*forget=*/true);
      });
  return taken / kUnits;
}

}  // namespace

int main(int argc, char** argv) {
  const c10::Device device(argc > 1 ? argv[1] : "cpu");
  std::printf("us per unit and step, unsharded taken off:\n");
  for (const auto strategy :
       {sherd::Strategy::no_shard, sherd::Strategy::optim, sherd::Strategy::optim_grads,
        sherd::Strategy::optim_grads_params}) {
    const double one = cost_per_unit<PlainTower>(device, strategy);
    const double other = cost_per_unit<FusedTower>(device, strategy);
    std::printf("%-20s %7.1f   with sherd::Linear %7.1f\n", to_text(strategy).c_str(), one, other);
    std::fflush(stdout);
  }
}
