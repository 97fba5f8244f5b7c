// SPDX-License-Identifier: Apache-2.0
// What the optimizer and the watch over gradients cost on a GPU: step_cost [SECONDS OF WARM-UP]
// [DEVICE] AdamW over 1 G parameters against a copy; then a step of 8 layers at the width of an 8 B
// model as one rank of an emulated world of 8, with and without the watch.
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/cuda.h>
#include <torch/nn/functional.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/emulated/recorded_calls.h"
#include "sherd/sherd.h"

namespace {

c10::Device device("cuda");
int64_t dim = 4096;
int64_t hidden = 14336;
int64_t tokens = 4096;
int64_t pile_of = int64_t{1} << 26;  // parameters, sixteen times
constexpr int64_t kHead = 128;
constexpr int64_t kLayers = 8;

double seconds() {
  if (device.is_cuda()) torch::cuda::synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class... Args>
void print(const char* format, Args... args) {
  std::printf(format, args...);
  std::fflush(stdout);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Seconds of one run, after as many as the warm-up takes.
template <class Run>
double time_of(Run run, double warm_up) {
  for (const double begin = seconds(); seconds() - begin < warm_up;) run();
  std::vector<double> rounds;
  for (int i = 0; i < 9; ++i) {
    const double begin = seconds();
    for (int j = 0; j < 5; ++j) run();
    rounds.push_back((seconds() - begin) / 5);
  }
  return median(rounds);
}

struct PileImpl : torch::nn::Module {
  PileImpl() {
    for (int i = 0; i < 16; ++i) {
      weights.push_back(register_parameter("weight" + std::to_string(i), torch::zeros({pile_of})));
    }
  }
  at::Tensor forward() {
    at::Tensor sum = torch::zeros({}, weights[0].options());
    for (const auto& weight : weights) sum = sum + (weight * 1e-3).sum();
    return sum;
  }
  std::vector<at::Tensor> weights;
};
SHERD_MODULE(Pile);

void optimizer_against_copy(double warm_up) {
  double copy = 0;
  {
    const auto from = torch::zeros({128 * pile_of}, torch::dtype(torch::kByte).device(device));
    auto to = torch::empty_like(from);
    copy = 2 * static_cast<double>(from.nbytes()) / time_of([&] { to.copy_(from); }, warm_up);
  }
  print("copy: %.2f TB/s\n", copy / 1e12);
  for (const auto* recipe : {"fp32", "bf16_o2"}) {
    const auto world = sherd::World::emulated({.rank = 0, .size = 1, .device = device});
    const sherd::Mesh mesh(world, {{"dp", 1}});
    Pile pile;
    pile->to(device);
    sherd::fully_shard(pile, {.mesh = mesh, .precision = sherd::Precision::recipe(recipe)});
    sherd::AdamW optimizer(pile, {.max_norm = 1});
    std::vector<double> times;
    for (const double begin = seconds(); times.size() < 20 || seconds() - begin < warm_up;) {
      pile().backward();
      const double now = seconds();
      optimizer.step();
      times.push_back(seconds() - now);
    }
    const double taken = median({times.end() - 20, times.end()});
    // Read: weight, gradient twice (the norm first), moments. Written: weight, moments, model
    // weight.
    const double bytes =
        static_cast<double>(16 * pile_of) * (std::string(recipe) == "fp32" ? 32 : 34);
    print(
        "AdamW, %s, with the norm: %.2f ms, %.2f TB/s, %.0f %% of the copy\n", recipe, taken * 1e3,
        bytes / taken / 1e12, 100 * bytes / taken / copy);
  }
}

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, sherd::Linear(torch::nn::LinearOptions(in, out).bias(false)));
    };
    attention = linear("attention", dim, 3 * dim);
    output = linear("output", dim, dim);
    gate = linear("gate", dim, hidden);
    up = linear("up", dim, hidden);
    down = linear("down", hidden, dim);
  }
  at::Tensor forward(at::Tensor x) {
    const auto heads = attention(norm(x)).view({1, tokens, 3, dim / kHead, kHead}).unbind(2);
    const auto mixed = at::scaled_dot_product_attention(
        heads[0].transpose(1, 2), heads[1].transpose(1, 2), heads[2].transpose(1, 2), {}, 0, true);
    x = x + output(mixed.transpose(1, 2).reshape({1, tokens, dim}));
    const auto y = norm(x);
    return x + down(torch::silu(gate(y)) * up(y));
  }
  static at::Tensor norm(const at::Tensor& x) { return torch::layer_norm(x, {dim}); }
  sherd::Linear attention{nullptr}, output{nullptr}, gate{nullptr}, up{nullptr}, down{nullptr};
};
SHERD_MODULE(Layer);

struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Layer()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x.sum();
  }
  std::vector<Layer> layers;
};
SHERD_MODULE(Tower);

void watch_in_a_step(double warm_up, sherd::Strategy strategy) {
  const auto world = sherd::World::emulated({.rank = 3, .size = 8, .device = device});
  const sherd::Mesh mesh(world, {{"dp", 8}});
  const sherd::UnitOptions options{
      .mesh = mesh,
      .placement = sherd::Placement(strategy),
      .precision = sherd::Precision::recipe("bf16_o2")};
  auto tower = [] {
    const sherd::MetaDevice meta;
    return Tower();
  }();
  for (auto& layer : tower->layers) sherd::fully_shard(layer, options);
  sherd::fully_shard(tower, options);
  sherd::initialise(tower, {.values = [](const std::string&, at::IntArrayRef) {
                      return sherd::InitialValues::normal(0, 0.02);
                    }});
  sherd::AdamW optimizer(tower, {.lr = 1e-5, .max_norm = 1});
  const auto x = torch::randn({1, tokens, dim}, torch::dtype(torch::kBFloat16).device(device));
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      (tower(x) * 1e-6).backward();
      optimizer.step();
      sherd::recorded_calls(world.communicator(), /*forget=*/true);
    }
  };
  for (const double begin = seconds(); seconds() - begin < warm_up;) steps(5);
  std::vector<double> with, without, ratios;
  for (int round = 0; round < 21; ++round) {
    for (const bool watched : {round % 2 == 0, round % 2 != 0}) {
      sherd::watch(tower, {.enabled = watched});
      steps(1);
      const double begin = seconds();
      steps(6);
      (watched ? with : without).push_back((seconds() - begin) / 6);
    }
    ratios.push_back(with.back() / without.back() - 1);
  }
  print(
      "%s: a step takes %.2f ms, with the watch %.2f ms; median of %zu differences: %.2f %%\n",
      to_text(strategy).c_str(), median(without) * 1e3, median(with) * 1e3, ratios.size(),
      median(ratios) * 100);
}

}  // namespace

int main(int argc, char** argv) {
  const double warm_up = argc > 1 ? std::atof(argv[1]) : 10;
  if (argc > 2) device = c10::Device(argv[2]);
  if (device.is_cpu()) {  // to see that it runs
    dim = 256;
    hidden = 512;
    tokens = 16;
    pile_of = 1 << 12;
  }
  optimizer_against_copy(warm_up);
  for (const auto strategy : {sherd::Strategy::optim_grads_params, sherd::Strategy::optim_grads}) {
    watch_in_a_step(warm_up, strategy);
  }
}
