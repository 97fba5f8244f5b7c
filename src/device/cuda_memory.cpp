// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdlib>

#include "device/device_memory.h"

namespace sherd {
namespace {

constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

std::optional<DeviceMemory> device_memory(c10::Device device) {
  if (!device.is_cuda() || c10::cuda::device_count() == 0) return std::nullopt;
  const c10::cuda::CUDAGuard guard(device);
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(guard.current_device().index());
  const auto& allocated = stats.allocated_bytes[kAll];
  const auto& reserved = stats.reserved_bytes[kAll];
  DeviceMemory memory;
  memory.total = static_cast<int64_t>(total);
  memory.used = static_cast<int64_t>(total - free);
  memory.allocated = allocated.current;
  memory.peak_allocated = allocated.peak;
  memory.reserved = reserved.current;
  memory.peak_reserved = reserved.peak;
  return memory;
}

void restart_memory_peaks(c10::Device device) {
  if (!device.is_cuda()) return;
  const c10::cuda::CUDAGuard guard(device);
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(guard.current_device().index());
}

void use_expandable_segments() {
  if (c10::cuda::device_count() == 0) return;
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    if (std::getenv(name)) return;
  }
  c10::cuda::CUDACachingAllocator::setAllocatorSettings("expandable_segments:True");
}

}  // namespace sherd
