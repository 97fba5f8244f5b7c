// SPDX-License-Identifier: Apache-2.0
#include "comm/backends.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "comm/mpi/mpi_session.h"
#include "comm/nccl/nccl_session.h"

namespace sherd {
namespace {

// A new backend is one more line here; CONTRIBUTING.md lists the rest.
constexpr std::array kBackends{
    BackendEntry{Backend::nccl, "nccl", has_gpu, open_nccl},
    BackendEntry{Backend::mpi, "mpi", [] { return true; }, open_mpi},
};

}  // namespace

std::span<const BackendEntry> backends() {
  return kBackends;
}

const BackendEntry& find_backend(std::optional<Backend> chosen) {
  const auto* found = std::find_if(kBackends.begin(), kBackends.end(), [&](const auto& entry) {
    return chosen ? entry.backend == *chosen : entry.is_available();
  });
  TORCH_CHECK_VALUE(
      found != kBackends.end(), "[comm.world] the backend of number ",
      chosen ? static_cast<int>(*chosen) : -1, " is not in the table of src/comm/backends.cpp");
  return *found;
}

}  // namespace sherd
