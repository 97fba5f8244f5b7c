// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "sherd/export.h"

namespace sherd {

/// A GPU's memory, in bytes.
struct DeviceMemory {
  int64_t total = 0;
  int64_t used = 0;            ///< by all processes, as nvidia-smi shows it
  int64_t allocated = 0;       ///< of tensors, now
  int64_t peak_allocated = 0;  ///< since the peaks were restarted
  int64_t reserved = 0;        ///< by torch's allocator, for tensors
  int64_t peak_reserved = 0;
  /// What no tensor can account for: the context, code of kernels, communicators.
  int64_t outside() const { return used - reserved; }
};

/// Nothing for a device that is no GPU.
SHERD_API std::optional<DeviceMemory> device_memory(c10::Device device);
/// Gives back what torch's allocator holds and no tensor uses, and forgets the peaks so far.
SHERD_API void restart_memory_peaks(c10::Device device);
/// Lets torch's allocator grow its segments instead of adding new ones, so that it reserves little
/// more than is allocated. Before the first tensor; a setting of the user's comes first.
SHERD_API void reserve_little();

}  // namespace sherd
