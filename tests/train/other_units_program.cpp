// SPDX-License-Identifier: Apache-2.0
// One rank of a run that blame_test.py starts: other_units_program FOLDER. In the third step rank 1
// calls its units in another order than the other ranks.
#include <c10/util/Exception.h>
#include <torch/nn.h>

#include <iostream>
#include <utility>

#include "comm/flight/flight_ring.h"
#include "sherd/comm/world.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace {

struct LayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x + torch::gelu(inner(x)); }
  torch::nn::Linear inner = register_module("inner", torch::nn::Linear(16, 16));
};
SHERD_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (const char* name : {"first", "second", "third"})
      layers.push_back(register_module(name, Layer()));
  }
  at::Tensor forward(at::Tensor x) {
    if (swapped) std::swap(layers[0], layers[2]);
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Layer> layers;
  bool swapped = false;
};
SHERD_MODULE(Stack);

void run(const std::string& folder) {
  sherd::WorldOptions options;
  options.device = c10::kCPU;
  options.operation_timeout = std::chrono::seconds(20);
  const auto world = sherd::World::from_environment(options);
  sherd::FlightRing::open(
      {.path = folder + "/rank-" + std::to_string(world.rank()) + ".ring",
       .entries = 4096,
       .run = 1,
       .rank = world.rank(),
       .size = world.size(),
       .backend = world.communicator().backend()});
  Stack model;
  for (auto& layer : model->layers) sherd::fully_shard(layer);
  sherd::fully_shard(model);
  sherd::AdamW optimizer(model, {});
  for (int step = 1; step <= 4; ++step) {
    model->swapped = step == 3 && world.rank() == 1;
    sherd::call(model, torch::ones({4, 16})).sum().backward();
    optimizer.step();
  }
}

}  // namespace

int main(int, char** argv) {
  try {
    run(argv[1]);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << std::endl;
    return 1;
  }
  return 0;
}
