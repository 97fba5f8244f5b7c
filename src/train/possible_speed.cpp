// SPDX-License-Identifier: Apache-2.0
#include "train/possible_speed.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <chrono>

namespace sherd {

double possible_tflops(c10::Device device, c10::ScalarType dtype) {
  using Clock = std::chrono::steady_clock;
  const int64_t size = device.is_cuda() ? 8192 : 512;
  const auto a = at::ones({size, size}, at::TensorOptions().dtype(dtype).device(device));
  auto product = at::mm(a, a);
  const auto finish = [&] { return product.select(0, 0).select(0, 0).item<double>(); };
  finish();
  int64_t products = 0;
  const auto begin = Clock::now();
  double seconds = 0;
  while (seconds < 0.1) {
    for (int i = 0; i < 4; ++i) at::mm_out(product, a, a);
    finish();
    products += 4;
    seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  const auto side = static_cast<double>(size);
  return 2 * side * side * side * static_cast<double>(products) / seconds / 1e12;
}

}  // namespace sherd
