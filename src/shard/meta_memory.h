// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "sherd/export.h"

namespace sherd {

/// A scope that counts the bytes that tensors on the meta device would take if they had memory. So
/// the memory of a model is known without a device. Counts the tensors of all threads.
class SHERD_API MetaMemory {
 public:
  /// Starts counting. Each tensor is rounded up to a multiple of `granule` bytes, as an allocator
  /// would. Throws if another MetaMemory exists.
  explicit MetaMemory(int64_t granule = 1);
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  /// Returns the bytes of the counted tensors that exist now.
  int64_t live() const;
  /// Returns the largest value of live() since the start, or since restart_peak().
  int64_t peak() const;
  /// Sets the peak to live().
  void restart_peak();

  struct Counter;

 private:
  std::unique_ptr<Counter> counter_;
};

/// A scope in which the meta device represents a device of another type on this thread, so that
/// what only that type needs is counted as well. Without it, the meta device represents a CPU.
class SHERD_API MetaTarget {
 public:
  explicit MetaTarget(c10::DeviceType type);
  ~MetaTarget();
  MetaTarget(const MetaTarget&) = delete;
  MetaTarget& operator=(const MetaTarget&) = delete;

 private:
  c10::DeviceType before_;
};

}  // namespace sherd
