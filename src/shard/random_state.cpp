// SPDX-License-Identifier: Apache-2.0
#include "shard/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <atomic>

namespace sherd {
namespace {

std::atomic<bool> leaves_devices{false};

}  // namespace

void RandomState::leave_devices(bool leave) {
  leaves_devices = leave;
}

RandomState RandomState::now() {
  RandomState state;
  state.cpu_ = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  if (leaves_devices || !at::globalContext().hasCUDA()) return state;
  const auto& hooks = at::detail::getCUDAHooks();
  for (c10::DeviceIndex index = 0; index < hooks.deviceCount(); ++index) {
    if (!hooks.hasPrimaryContext(index)) continue;  // not in use by this process
    const c10::Device device(c10::kCUDA, index);
    state.cuda_.emplace_back(device, at::globalContext().defaultGenerator(device).get_state());
  }
  return state;
}

void RandomState::restore() const {
  const auto set = [](c10::Device device, const at::Tensor& saved) {
    auto generator = at::globalContext().defaultGenerator(device);
    generator.set_state(saved);
  };
  if (cpu_.defined()) set(c10::kCPU, cpu_);
  for (const auto& [device, saved] : cuda_) set(device, saved);
}

}  // namespace sherd
