// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd {

/// Returns for how long threads of this process have waited for operations on CPU tensors so far;
/// if several waited at once, their times are added. On CUDA the host does not wait. Any thread.
int64_t waited_nanoseconds();
/// Adds to it.
void add_waited(int64_t nanoseconds);

}  // namespace sherd
