// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd {

/// Returns when a process of this machine was started, in the kernel's ticks since the machine was;
/// 0 if there is no such process.
int64_t start_of_process(int64_t process);
/// Returns its state as /proc/PID/stat has it: 'R', 'S', 'T' (stopped), 'Z' (ended) and others; 0
/// if there is no such process.
char state_of_process(int64_t process);

}  // namespace sherd
