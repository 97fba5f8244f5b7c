// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "comm/launch.h"
#include "comm/session.h"
#include "sherd/comm/world.h"

namespace sherd {

/// Opens the backend mpi: CPU tensors, moved by one progress thread of the process (Engine). See
/// BackendEntry::open. Throws also if several ranks were not started by an MPI launcher. A process
/// alone needs no MPI, not even in the build.
///
/// The sessions of one process share its engine: MPI can be started only once.
std::unique_ptr<Session> open_mpi(const Launch& launch, const WorldOptions& options);

/// Returns the version line of the MPI library, or "none" without MPI in the build.
std::string mpi_version();

}  // namespace sherd
