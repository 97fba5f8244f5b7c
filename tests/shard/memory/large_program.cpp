// SPDX-License-Identifier: Apache-2.0
// One rank of the run that large_test.sh starts: builds and trains a model whose weights alone are
// more than this process may allocate.
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <fstream>
#include <iostream>

#include "sherd/sherd.h"

namespace {

constexpr int64_t kDim = 1024;
constexpr int64_t kLayers = 96;  // of 4 MiB each

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    linear = register_module(
        "linear", torch::nn::Linear(torch::nn::LinearOptions(kDim, kDim).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return x + torch::tanh(linear(x)); }
  torch::nn::Linear linear{nullptr};
};
SHERD_MODULE(Layer);

struct LargeImpl : torch::nn::Module {
  LargeImpl() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Layer()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x.square().mean();
  }
  std::vector<Layer> layers;
};
SHERD_MODULE(Large);

/// Private memory that may be written: what RLIMIT_DATA counts.
int64_t data_bytes() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    if (word == "VmData:") {
      int64_t kib = 0;
      in >> kib;
      return kib << 10;
    }
  }
  throw std::runtime_error("no VmData in /proc/self/status");
}

void allow_more(int64_t bytes) {
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(data_bytes() + bytes);
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw std::runtime_error("setrlimit failed");
}

/// So that what torch and MPI take for themselves is there before the limit.
void warm_up(const sherd::World& world) {
  auto x = torch::ones({4, kDim}).requires_grad_();
  torch::matmul(x, torch::ones({kDim, kDim})).sum().backward();
  world.communicator().all_reduce(torch::ones({1 << 20}), sherd::Reduction::sum()).synchronize();
}

}  // namespace

int main(int argc, char**) {
  const auto world =
      sherd::World::from_environment({.operation_timeout = std::chrono::seconds(120)});
  warm_up(world);
  constexpr int64_t kWeights = kLayers * kDim * kDim * 4;
  allow_more(kWeights * 9 / 10);
  if (argc > 1) {  // the whole model, to see that the limit holds
    try {
      const Large model;
    } catch (const c10::Error&) {
      std::cout << "too large" << std::endl;
      return 0;
    }
    return 1;
  }
  const sherd::Mesh mesh(world, {{"dp", world.size()}});
  sherd::UnitOptions options{.mesh = mesh};
  options.precision = {.gradient = at::kBFloat16};
  auto model = [] {
    const sherd::MetaDevice meta;
    return Large();
  }();
  for (auto& layer : model->layers) sherd::fully_shard(layer, options);
  sherd::fully_shard(model, options);
  sherd::initialise(model, {.seed = 1});
  sherd::AdamW optimizer(model, {.lr = 1e-3, .states = at::kBFloat16});
  double last = 0;
  for (int step = 0; step < 2; ++step) {
    auto loss = model(torch::ones({2, kDim}));
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
  }
  if (world.rank() == 0) {
    std::cout << "weights " << (kWeights >> 20) << " MiB, limit " << (kWeights * 9 / 10 >> 20)
              << " MiB, loss " << last << std::endl;
  }
  return optimizer.updates() == 2 ? 0 : 1;
}
