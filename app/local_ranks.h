// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sherd::app {

/// Whether mpirun, torchrun or srun started this process.
bool has_launcher();
/// Whether this is rank 0, or alone.
bool is_first_rank();
/// How many ranks the launcher has started on this machine; 1 without one.
int64_t local_ranks();
/// This process becomes mpirun, which starts the same command `ranks` times. Returns only by
/// throwing.
[[noreturn]] void start_local_ranks(int64_t ranks, char** arguments);

}  // namespace sherd::app
