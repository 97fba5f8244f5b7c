// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/mpi/engine.h"
#include "sherd/comm/communicator.h"
#include "sherd/comm/world.h"

namespace c10d {
class Store;
}

namespace sherd {

class Departures;

/// Among all ranks of the engine's transport, which all call it at the same point. An operation
/// that takes longer than `timeout` is an error.
std::shared_ptr<Communicator> mpi_communicator(
    std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout);

/// The emulation's device has an index.
std::shared_ptr<Communicator> emulated_communicator(const Emulation& emulation);

/// Among `size` GPUs that meet through a store. Throws with the remedy where the build has no CUDA.
/// Operations that wait for a rank that has announced its departure fail; null: none can.
std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    c10::Device device,
    const WorldOptions& options,
    const std::shared_ptr<Departures>& departures);
std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    c10::Device device,
    const WorldOptions& options);
/// The one that a group is bound to, else the one that the calling thread has chosen.
c10::Device device_of_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group);

/// How many GPUs this process may use; 0 without CUDA in the build or on the machine.
int64_t gpu_count();
/// The versions of CUDA and NCCL, or that there is none.
std::string cuda_version();

}  // namespace sherd
