// SPDX-License-Identifier: Apache-2.0
#include "shard/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace sherd::testing {
namespace {

/// The allocator that was there, with a record of what is live.
class CountingAllocator final : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    // Never destroyed: tensors of static storage are freed through it at the end.
    static auto& one = *new CountingAllocator(*c10::GetCPUAllocator());
    return one;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* data = inner_.raw_allocate(bytes);
    std::lock_guard lock(mutex_);
    if (bytes > 0) {
      sizes_[data] = bytes;
      memory_.live += static_cast<int64_t>(bytes);
      memory_.allocated += static_cast<int64_t>(bytes);
      ++memory_.allocations;
      memory_.peak = std::max(memory_.peak, memory_.live);
    }
    return {data, data, &CountingAllocator::free, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  CpuMemory memory(bool restart) {
    std::lock_guard lock(mutex_);
    if (restart) memory_ = {.live = memory_.live, .peak = memory_.live};
    return memory_;
  }

 private:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}

  static void free(void* data) {
    auto& self = instance();
    {
      std::lock_guard lock(self.mutex_);
      const auto found = self.sizes_.find(data);
      if (found != self.sizes_.end()) {
        self.memory_.live -= static_cast<int64_t>(found->second);
        self.sizes_.erase(found);
      }
    }
    self.inner_.raw_deallocate(data);
  }

  c10::Allocator& inner_;
  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;
  CpuMemory memory_;
};

CountingAllocator& counting() {
  auto& one = CountingAllocator::instance();
  static const bool installed = [&] {
    c10::SetCPUAllocator(&one, /*priority=*/100);
    return true;
  }();
  (void)installed;
  return one;
}

}  // namespace

CpuMemory cpu_memory() {
  return counting().memory(/*restart=*/false);
}

CpuMemory restart_cpu_peak() {
  return counting().memory(/*restart=*/true);
}

}  // namespace sherd::testing
