// SPDX-License-Identifier: Apache-2.0
#include "device/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <atomic>

#include "device/graph_random.h"

namespace sherd {
namespace {

constexpr int kNoDevice = -1;
std::atomic<int> captured_device{kNoDevice};  // its index; autograd's threads read it

}  // namespace

void RandomState::set_capturing(std::optional<c10::Device> device) {
  captured_device = device ? device->index() : kNoDevice;
}

RandomState RandomState::now() {
  RandomState state;
  state.cpu_ = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  if (const int captured = captured_device; captured != kNoDevice) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(captured));
    state.in_graph_.emplace(device, random_offset_in_graph(device));
    return state;
  }
  if (!at::globalContext().hasCUDA()) return state;
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
  if (in_graph_) set_random_offset_in_graph(in_graph_->first, in_graph_->second);
}

}  // namespace sherd
