// SPDX-License-Identifier: Apache-2.0
// The emulated communicator's time and SMs on a GPU.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <gtest/gtest.h>

#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"

namespace sherd {
namespace {

at::cuda::CUDAEvent timing_event() {
  return at::cuda::CUDAEvent(cudaEventDefault);
}

World world_with(double latency, double bandwidth, int sms) {
  Network network;
  network.fallback = {.latency = latency, .bandwidth = bandwidth};
  return World::emulated(
      {.rank = 3, .size = 8, .device = c10::kCUDA, .network = network, .sms = sms});
}

const auto kOnGpu = at::TensorOptions().device(at::kCUDA);

TEST(EmulatedCuda, TakesTheTimeOfTheNetworkWithinFivePercent) {
  for (const double time : {50e-6, 200e-6, 2e-3, 20e-3}) {
    const auto world = world_with(time / 2, 7.0 / 8 * 8e6 * 4 / (time / 2), 8);
    auto part = at::ones({1'000'000}, kOnGpu);
    auto full = at::zeros({8'000'000}, kOnGpu);
    auto& comm = world.communicator();
    const auto stream = c10::cuda::getStreamFromPool();
    for (int i = 0; i < 3; ++i) comm.all_gather(full, part, stream.unwrap()).synchronize();
    constexpr int kRepeats = 20;
    auto begin = timing_event(), end = timing_event();
    begin.record(stream);
    for (int i = 0; i < kRepeats; ++i) comm.all_gather(full, part, stream.unwrap());
    end.record(stream);
    end.synchronize();
    const double each = begin.elapsed_time(end) / 1e3 / kRepeats;
    std::cout << "asked for " << time * 1e6 << " us, took " << each * 1e6 << " us\n";
    // The copy of 32 MB itself takes about 16 us, and each launch some: below 200 us those show.
    EXPECT_NEAR(each, time, time < 100e-6 ? time * 0.2 : time * 0.05);
  }
}

TEST(EmulatedCuda, HoldsAsManySmsAsAsked) {
  const int all = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  auto a = at::randn({2048, 2048}, kOnGpu.dtype(at::kBFloat16));
  auto part = at::ones({1000}, kOnGpu);
  auto full = at::zeros({8000}, kOnGpu);
  at::mm(a, a);
  const auto product_time = [&](int sms) {
    const auto world = world_with(20e-3, 0, sms);
    at::cuda::device_synchronize();
    const auto stream = c10::cuda::getStreamFromPool(true);
    auto work = world.communicator().all_gather(full, part, stream.unwrap());
    auto begin = timing_event(), end = timing_event();
    begin.record();
    // Enough of them that most start after the SMs are taken.
    for (int i = 0; i < 100; ++i) at::mm(a, a);
    end.record();
    end.synchronize();
    work.synchronize();
    return static_cast<double>(begin.elapsed_time(end)) / 1e3;
  };
  product_time(8);
  const double beside_few = product_time(8);
  const double behind_all = product_time(all);
  std::cout << "beside 8 SMs held: " << beside_few * 1e3 << " ms, all held: " << behind_all * 1e3
            << " ms\n";
  EXPECT_LT(beside_few, 10e-3);
  EXPECT_GT(behind_all, 15e-3);
}

}  // namespace
}  // namespace sherd
