// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "sherd/export.h"

namespace sherd {

/// The memory of a GPU, in bytes.
struct DeviceMemory {
  int64_t total = 0;           ///< memory of the device
  int64_t used = 0;            ///< used by all processes, as nvidia-smi shows it
  int64_t allocated = 0;       ///< used by tensors of torch's allocator now
  int64_t peak_allocated = 0;  ///< largest `allocated` since restart_memory_peaks()
  int64_t reserved = 0;        ///< reserved by torch's allocator now
  int64_t peak_reserved = 0;   ///< largest `reserved` since restart_memory_peaks()
  /// Returns the bytes that torch's allocator does not account for: the CUDA context, kernel code,
  /// communicators, other processes.
  int64_t outside() const { return used - reserved; }
};

/// Returns the state of a GPU's memory; nothing for another device or in a build without CUDA.
SHERD_API std::optional<DeviceMemory> device_memory(c10::Device device);
/// Empties the cache of torch's allocator and restarts the peaks. No effect without a GPU.
SHERD_API void restart_memory_peaks(c10::Device device);
/// Makes torch's allocator extend its segments instead of adding new ones
/// (expandable_segments:True), so that it reserves little more than tensors use. Call it before the
/// first tensor on a GPU. No effect if PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF is set.
SHERD_API void use_expandable_segments();

}  // namespace sherd
