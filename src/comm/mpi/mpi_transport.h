// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "comm/engine/transport.h"

namespace sherd {

/// Opens MPI among the ranks that its launcher started. Collective; blocks until all have arrived.
/// Throws with the missing ranks if they have not within `timeout`, if MPI counts other ranks than
/// the launcher, and with the remedy if the build has no MPI.
std::unique_ptr<Transport> mpi_transport(std::chrono::milliseconds timeout);

}  // namespace sherd
