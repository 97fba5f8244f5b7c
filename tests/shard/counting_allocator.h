// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd::testing {

/// What tensors of this process have taken of the CPU's memory.
struct CpuMemory {
  int64_t live = 0;         ///< bytes
  int64_t peak = 0;         ///< the most bytes that were live
  int64_t allocations = 0;  ///< of one byte or more
  int64_t allocated = 0;    ///< bytes of them all
};

/// Counts from the first call on, for the rest of the process.
CpuMemory cpu_memory();
/// Forgets the peak and the allocations so far: from now on they are those of what follows.
CpuMemory restart_cpu_peak();

}  // namespace sherd::testing
