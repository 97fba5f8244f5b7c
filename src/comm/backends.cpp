// SPDX-License-Identifier: Apache-2.0
#include "comm/backends.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "comm/mpi/mpi_session.h"
#include "comm/nccl/nccl_session.h"
#include "comm/tcp/tcp_session.h"

namespace sherd {
namespace {

bool suits_always(const Launch&) {
  return true;
}
/// A process alone needs no launcher.
bool starts_mpi(const Launch& launch) {
  return launch.has_mpi || launch.launcher == Launcher::alone;
}

// A new backend is one more line here; CONTRIBUTING.md lists the rest.
constexpr std::array kBackends{
    BackendEntry{Backend::nccl, "nccl", c10::kCUDA, suits_always, open_nccl},
    BackendEntry{Backend::mpi, "mpi", c10::kCPU, starts_mpi, open_mpi},
    BackendEntry{Backend::tcp, "tcp", c10::kCPU, suits_always, open_tcp},
};

}  // namespace

std::span<const BackendEntry> backends() {
  return kBackends;
}

const BackendEntry& find_backend(const WorldOptions& options, const Launch& launch) {
  const auto device = options.device.value_or(has_gpu() ? c10::kCUDA : c10::kCPU);
  const auto* found = std::find_if(kBackends.begin(), kBackends.end(), [&](const auto& entry) {
    return options.backend ? entry.backend == *options.backend
                           : entry.device == device && entry.suits(launch);
  });
  TORCH_CHECK_VALUE(
      found != kBackends.end(), "[comm.world] no backend of src/comm/backends.cpp ",
      options.backend ? c10::str("has the number ", static_cast<int>(*options.backend))
                      : c10::str("is for ", c10::DeviceTypeName(device, /*lower_case=*/true)));
  TORCH_CHECK_VALUE(
      !options.device || found->device == *options.device, "[comm.world] the backend ", found->name,
      " is not for ", c10::DeviceTypeName(device, /*lower_case=*/true), " tensors");
  return *found;
}

}  // namespace sherd
