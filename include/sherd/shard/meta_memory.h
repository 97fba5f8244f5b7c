// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "sherd/export.h"

namespace sherd {

/// While it lives, tensors on the meta device, which have no memory, are counted as if they had:
/// what a model would take is known without a device. One at a time.
class SHERD_API MetaMemory {
 public:
  /// Each tensor counts as a multiple of `granule` bytes.
  explicit MetaMemory(int64_t granule = 1);
  ~MetaMemory();
  MetaMemory(const MetaMemory&) = delete;
  MetaMemory& operator=(const MetaMemory&) = delete;

  int64_t live() const;
  /// The most that was live since the start, or since restart_peak().
  int64_t peak() const;
  void restart_peak();

  struct Counter;

 private:
  std::unique_ptr<Counter> counter_;
};

/// While it lives, the meta device stands for one of another kind on this thread: what only that
/// kind needs is counted, too. Otherwise it stands for a CPU.
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
