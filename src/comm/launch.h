// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sherd/comm/world.h"

namespace sherd {

/// This process's place among the ranks, as its launcher describes it in environment variables.
struct Launch {
  Launcher launcher = Launcher::alone;
  int64_t rank = 0;                 ///< index in the world
  int64_t size = 1;                 ///< number of ranks
  int64_t local_rank = 0;           ///< index among the ranks of this machine
  int64_t local_size = 1;           ///< number of ranks on this machine
  bool has_mpi = false;             ///< whether the launcher also starts MPI
  std::string host;                 ///< where the store is served, if there is no MPI
  int port = 0;                     ///< port of the store
  int64_t attempt = 0;              ///< how often the launcher has started the ranks again
  bool launcher_has_store = false;  ///< the launcher itself serves the store (torchrun's agent)
};

/// Reads the variables through `get`, which returns null for one that is not set. Throws with the
/// variable and its value if one is missing or out of range, or if they contradict each other.
Launch launch_from(const std::function<const char*(const char*)>& get);
/// Reads the variables of this process.
Launch launch_from_environment();

}  // namespace sherd
