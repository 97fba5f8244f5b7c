// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sherd/comm/world.h"

namespace sherd {

/// What the launcher's environment says about this process.
struct Launch {
  Launcher launcher = Launcher::alone;
  int64_t rank = 0;
  int64_t size = 1;
  int64_t local_rank = 0;
  int64_t local_size = 1;
  bool has_mpi = false;  ///< an MPI launcher started the ranks
  std::string host;      ///< of the store, where there is no MPI
  int port = 0;
  bool launcher_has_store = false;  ///< the launcher itself serves the store (torchrun's agent)
};

/// Reads variables through `get`, which returns null for one that is not set. Throws, naming
/// variable and value, when they contradict each other or one is missing.
Launch launch_from(const std::function<const char*(const char*)>& get);
Launch launch_from_environment();

}  // namespace sherd
