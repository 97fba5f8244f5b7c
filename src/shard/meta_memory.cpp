// SPDX-License-Identifier: Apache-2.0
#include "shard/meta_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/meta_target.h"

namespace sherd {
namespace {

/// The count that all tensors share that were made while one was under way; some outlive it.
struct Count {
  std::mutex mutex;
  int64_t live = 0;
  int64_t peak = 0;
};

struct Tensor {
  std::shared_ptr<Count> count;
  int64_t bytes = 0;
};

void forget(void* context) {
  auto* tensor = static_cast<Tensor*>(context);
  {
    std::lock_guard lock(tensor->count->mutex);
    tensor->count->live -= tensor->bytes;
  }
  delete tensor;
}

std::atomic<bool> counting{false};

}  // namespace

/// Takes the place of the meta device's allocator.
struct MetaMemory::Counter final : c10::Allocator {
  explicit Counter(int64_t multiple) : granule(multiple) {}

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device meta(c10::DeviceType::Meta);
    if (bytes == 0) return {nullptr, meta};
    const auto wanted = static_cast<int64_t>(bytes);
    auto* tensor = new Tensor{count, (wanted + granule - 1) / granule * granule};
    {
      std::lock_guard lock(count->mutex);
      count->live += tensor->bytes;
      count->peak = std::max(count->peak, count->live);
    }
    return {nullptr, tensor, &forget, meta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &forget; }
  void copy_data(void*, const void*, size_t) const override {}

  int64_t granule;
  std::shared_ptr<Count> count = std::make_shared<Count>();
  c10::Allocator* before = nullptr;
};

MetaMemory::MetaMemory(int64_t granule) : counter_(std::make_unique<Counter>(granule)) {
  TORCH_CHECK(!counting.exchange(true), "[shard] meta memory is being counted already");
  counter_->before = c10::GetAllocator(c10::DeviceType::Meta);
  c10::SetAllocator(c10::DeviceType::Meta, counter_.get(), /*priority=*/100);
}

MetaMemory::~MetaMemory() {
  c10::SetAllocator(c10::DeviceType::Meta, counter_->before, /*priority=*/100);
  counting = false;
}

int64_t MetaMemory::live() const {
  std::lock_guard lock(counter_->count->mutex);
  return counter_->count->live;
}

int64_t MetaMemory::peak() const {
  std::lock_guard lock(counter_->count->mutex);
  return counter_->count->peak;
}

void MetaMemory::restart_peak() {
  std::lock_guard lock(counter_->count->mutex);
  counter_->count->peak = counter_->count->live;
}

MetaTarget::MetaTarget(c10::DeviceType type) : before_(meta_target()) {
  meta_target() = type;
}

MetaTarget::~MetaTarget() {
  meta_target() = before_;
}

}  // namespace sherd
