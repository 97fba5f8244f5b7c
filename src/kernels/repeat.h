// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace sherd {

/// Fills `target` with `count` copies of the `bytes` at `source`, on CUDA by one kernel on the
/// current stream. The source may be one of the copies' places; it is otherwise disjoint.
void repeat(void* target, const void* source, int64_t bytes, int64_t count, c10::Device device);

/// As above, in CUDA memory.
void repeat_on_cuda(
    void* target, const void* source, int64_t bytes, int64_t count, c10::Device device);

}  // namespace sherd
