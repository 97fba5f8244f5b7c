// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace sherd::app {

/// Returns whether mpirun, torchrun or srun started this process.
bool has_launcher();
/// Returns the number of ranks that the launcher has started; 1 without a launcher.
int64_t launched_ranks();
/// Returns whether this is rank 0 or the only process.
bool is_first_rank();
/// Returns a prefix for messages such as "rank 3: "; empty without a launcher.
std::string rank_text();
/// Returns the number of ranks that the launcher has started on this machine; 1 without a launcher.
int64_t local_ranks();
/// Starts the same command on `ranks` ranks with mpirun, waits for its end and returns its exit
/// code. A first SIGINT or SIGTERM asks the ranks to stop after their step, a second one ends them.
int start_local_ranks(int64_t ranks, char** arguments);
/// Throws if a launcher has started another number of ranks than were asked for.
void check_launched_ranks(int64_t wanted);
/// Limits this process's threads to its share of the machine's cores, unless OMP_NUM_THREADS is
/// set.
void share_cores();

}  // namespace sherd::app
