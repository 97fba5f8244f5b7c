// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>

#include "comm/launch.h"
#include "comm/session.h"
#include "sherd/comm/world.h"

namespace c10d {
class ProcessGroup;
}

namespace sherd {

/// Opens the backend nccl: CUDA tensors, one GPU per rank, over c10d's ProcessGroupNCCL. See
/// BackendEntry::open. Ranks that an MPI launcher started meet through MPI, others at a TCPStore.
/// Throws also if this machine has fewer GPUs than ranks.
std::unique_ptr<Session> open_nccl(const Launch& launch, const WorldOptions& options);

/// Opens it over a process group of the caller's, who closes the group; see World::over().
std::unique_ptr<Session> open_nccl_over(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options);

/// Returns how many GPUs this process may use; 0 without CUDA in the build or on the machine.
int64_t gpu_count();
inline bool has_gpu() {
  return gpu_count() > 0;
}

/// Returns the versions of CUDA and NCCL and the number of GPUs, or that the build has no CUDA.
std::string cuda_version();

}  // namespace sherd
