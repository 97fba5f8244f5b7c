// SPDX-License-Identifier: Apache-2.0
// Communication runs while units compute: on a network that takes its time, a step takes clearly
// less than both one after the other. With SHERD_TEST_DEVICE=cuda on a GPU, by its own clock.
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "comm/emulated/recorded_calls.h"
#include "shard/diagnostics/recording.h"
#include "shard/models.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"

#include <gtest/gtest.h>

namespace sherd::testing {
namespace {

constexpr int64_t kBlocks = 5;

c10::Device test_device() {
  const char* name = std::getenv("SHERD_TEST_DEVICE");
  return c10::Device(name == nullptr ? "cpu" : name);
}

/// Something that takes longer than a collective (on an H200 15 ms), and that the device can't run
/// while it copies.
void compute(const c10::Device& device) {
  const torch::NoGradGuard no_grad;
  if (!device.is_cuda()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(12));
    return;
  }
  static const auto matrix = torch::ones({7168, 7168}, torch::TensorOptions(device));
  torch::mm(matrix, matrix);
}

struct BusyBlockImpl : torch::nn::Module {
  BusyBlockImpl() { linear = register_module("linear", torch::nn::Linear(16, 16)); }
  at::Tensor forward(const at::Tensor& x) {
    compute(x.device());
    auto hidden = torch::tanh(x);
    hidden.register_hook([](const at::Tensor& gradient) { compute(gradient.device()); });
    return x + linear(hidden);
  }
  torch::nn::Linear linear{nullptr};
};
SHERD_MODULE(BusyBlock);

struct BusyModelImpl : torch::nn::Module {
  BusyModelImpl() {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), BusyBlock()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x.square().mean();
  }
  std::vector<BusyBlock> blocks;
};
SHERD_MODULE(BusyModel);

struct Times {
  double step = 0;           ///< seconds
  double communication = 0;  ///< seconds of all collectives, one after the other
};

/// Of the second step, on a network where each operation takes `latency` seconds.
Times times_with(double latency) {
  const auto device = test_device();
  Network network;
  network.axes["dp"] = {.latency = latency};
  const auto world = World::emulated({.rank = 1, .size = 4, .device = device, .network = network});
  const Mesh mesh(world, {{"dp", 4}});
  BusyModel model;
  model->to(device);
  for (auto& block : model->blocks) fully_shard(block, {.mesh = mesh});
  fully_shard(model, {.mesh = mesh});
  torch::optim::SGD optimizer(parameters(model), torch::optim::SGDOptions(0.01));
  const auto x = torch::ones({4, 16}, torch::TensorOptions(device).requires_grad(true));
  const auto step = [&] {
    model(x).backward();
    sherd::step(model, optimizer);
  };
  step();
  finish(model);
  recorded_calls(world.communicator(), /*forget=*/true);
  Recording recording(*model);
  step();
  Times times{.step = recording.finish().timeline.seconds};
  for (const auto& call : recorded_calls(world.communicator())) {
    if (call.communicator != "control") times.communication += latency;
  }
  return times;
}

TEST(OverlapTest, AStepTakesClearlyLessThanItsComputingAndItsCommunication) {
  constexpr double kLatency = 8e-3;
  // Gathers alone take two thirds, reductions one; the first and the last of a step hide nothing.
  constexpr double kExposed = 0.35;
  // What hides nothing takes at least the sum of both, each time. A machine that has other things
  // to do only makes a step longer, so one of a few has to show it.
  double least = 1;
  for (int i = 0; i < 5 && least > kExposed; ++i) {
    const double alone = times_with(0).step;
    const auto both = times_with(kLatency);
    // A gather in each direction and a reduction.
    ASSERT_GE(both.communication, 3 * kBlocks * kLatency - 1e-9);
    const double exposed = (both.step - alone) / both.communication;
    std::cout << "computing " << alone * 1e3 << " ms, communication " << both.communication * 1e3
              << " ms, a step " << both.step * 1e3 << " ms\n";
    least = std::min(least, exposed);
  }
  EXPECT_LE(least, kExposed) << "of the communication's time computing stands still";
}

}  // namespace
}  // namespace sherd::testing
