// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
/// Starts this program with `arguments` on `ranks` ranks with mpirun, waits for the end and returns
/// the exit code. A first SIGINT, SIGTERM or SIGUSR1 asks the ranks to stop after their step, a
/// second one ends them.
int start_local_ranks(int64_t ranks, const std::vector<std::string>& arguments);
/// Returns whether such a signal has arrived.
bool stop_requested();
/// Throws if a launcher has started another number of ranks than were asked for.
void check_launched_ranks(int64_t wanted);
/// Has SIGTERM, a request to stop, sent to this process when the mpirun or torchrun that started it
/// ends: its ranks would live on. (Slurm ends them itself; other launchers may be meant to end
/// before their ranks.)
void stop_with_launcher();
/// Limits this process's threads to its share of the machine's cores, unless OMP_NUM_THREADS is
/// set.
void share_cores();

}  // namespace sherd::app
