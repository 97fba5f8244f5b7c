// SPDX-License-Identifier: Apache-2.0
#include "sherd/version.h"

#include <torch/version.h>

#include <sstream>

#include "comm/mpi/mpi_session.h"
#include "comm/nccl/nccl_session.h"

namespace sherd {

std::string version_text() {
  std::ostringstream out;
  out << "sherd " << SHERD_VERSION << '\n'
      << "torch " << TORCH_VERSION << '\n'
      << "mpi   " << mpi_version() << '\n'
      << "cuda  " << cuda_version() << '\n'
      << "g++   " << __VERSION__ << '\n';
  return out.str();
}

}  // namespace sherd
