// SPDX-License-Identifier: Apache-2.0
// AdamW where the host must not be needed: in a CUDA graph, and never waiting.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>

#include "shard/twin.h"
#include "sherd/optim/adamw.h"

namespace {

std::atomic<int64_t> waits{0};

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// Every way by which the runtime lets a host wait for a device is counted on its way there: torch,
// NCCL and Sherd find these before the library's own.
#pragma GCC visibility push(default)
extern "C" {
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++waits;
  static const auto there = next<decltype(&cudaStreamSynchronize)>("cudaStreamSynchronize");
  return there(stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++waits;
  static const auto there = next<decltype(&cudaEventSynchronize)>("cudaEventSynchronize");
  return there(event);
}
cudaError_t cudaDeviceSynchronize() {
  ++waits;
  static const auto there = next<decltype(&cudaDeviceSynchronize)>("cudaDeviceSynchronize");
  return there();
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  ++waits;
  static const auto there = next<decltype(&cudaMemcpy)>("cudaMemcpy");
  return there(to, from, bytes, kind);
}
}
#pragma GCC visibility pop

namespace sherd::testing {
namespace {

/// Its gradients are the same whatever its weights are.
struct LevelImpl : torch::nn::Module {
  LevelImpl() {
    for (const int64_t size : {1, 7, 300, 70000}) {
      weights.push_back(register_parameter("weight" + std::to_string(size), torch::randn({size})));
    }
  }
  at::Tensor forward() {
    auto sum = torch::zeros({}, weights[0].options());
    for (const auto& weight : weights) {
      sum = sum + (weight * torch::linspace(-1, 2, weight.numel(), weight.options())).sum();
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};
SHERD_MODULE(Level);

template <class Model>
struct Trained {
  Trained(Model made, const ShardingCase& way, const AdamWOptions& options)
      : model(std::move(made)) {
    to_device(*model);
    fully_shard(model, options_for(way));
    optimizer.emplace(model, options);
  }
  Model model;
  std::optional<AdamW> optimizer;
};

Level level() {
  torch::manual_seed(5);
  return Level();
}

class CudaTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(CudaTest, NoStepWaitsForTheDevice) {
  for (const bool scaled : {false, true}) {
    AdamWOptions options{.lr = 1e-3, .max_norm = 0.1};
    if (scaled) options.scaling = LossScaling{.initial = 8};
    Trained trained(Chain(4), GetParam(), options);
    const auto input = chain_input(test_world().rank(), 0).to(test_world().device());
    const auto step = [&] {
      trained.optimizer->scale(trained.model(input)).backward();
      trained.optimizer->set_lr(2e-3);
      trained.optimizer->step();
    };
    for (int i = 0; i < 3; ++i) step();
    const int64_t before = waits;
    for (int i = 0; i < 20; ++i) step();
    EXPECT_EQ(waits - before, 0);
    trained.optimizer->gradient_norm();  // asks the device
    EXPECT_GT(waits - before, 0);
  }
}

TEST_P(CudaTest, AStepIsCapturedInAGraphWhoseRateChangesBetweenReplays) {
  const AdamWOptions options{.lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5};
  Trained captured(level(), GetParam(), options);
  Trained plain(level(), GetParam(), options);
  captured.model().backward();
  finish(captured.model);
  const auto side = c10::cuda::getStreamFromPool();
  at::cuda::CUDAGraph graph;
  cudaDeviceSynchronize();
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    captured.optimizer->step();
    graph.capture_end();
  }
  for (const double lr : {1e-3, 5e-4, 2e-3}) {
    const c10::cuda::CUDAStreamGuard guard(side);
    captured.optimizer->set_lr(lr);
    graph.replay();
    plain.model().backward();
    plain.optimizer->set_lr(lr);
    plain.optimizer->step();
    cudaDeviceSynchronize();
    const auto replayed = parameters(captured.model);
    const auto stepped = parameters(plain.model);
    for (size_t i = 0; i < stepped.size(); ++i) {
      EXPECT_TRUE(at::equal(replayed[i], stepped[i])) << "lr " << lr << ", tensor " << i;
    }
  }
  EXPECT_EQ(captured.optimizer->updates(), 3);
  cudaDeviceSynchronize();
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaTest, ::testing::ValuesIn(all_ways()), [](const auto& one) {
  return one.param.name;
});

}  // namespace
}  // namespace sherd::testing
