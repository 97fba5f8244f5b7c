// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace sherd::app {

/// Whether mpirun, torchrun or srun started this process.
bool has_launcher();
/// How many ranks the launcher has started; 1 without one.
int64_t launched_ranks();
/// Whether this is rank 0, or alone.
bool is_first_rank();
/// "rank 3: ", for messages; nothing where there is one rank.
std::string rank_text();
/// How many ranks the launcher has started on this machine; 1 without one.
int64_t local_ranks();
/// Has mpirun start the same command `ranks` times and waits for the end; returns its exit code. A
/// first SIGINT or SIGTERM asks the ranks to stop after their step, a second one ends them.
int start_local_ranks(int64_t ranks, char** arguments);
/// Throws if a launcher has started another number of ranks than were asked for.
void check_launched_ranks(int64_t wanted);
/// Gives this process its part of the machine's cores, unless OMP_NUM_THREADS says how many.
void share_cores();

}  // namespace sherd::app
