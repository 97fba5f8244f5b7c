// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>

#include "sherd/comm/communicator.h"
#include "sherd/comm/world.h"

namespace c10d {
class Store;
}

namespace sherd {

class Departures;

/// Returns a communicator among `size` GPUs, whose ranks meet at a store. Collective; blocks until
/// they are connected. Operations that wait for a rank that has announced its departure fail; if
/// `departures` is null, they wait for their time limit.
std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    c10::Device device,
    const WorldOptions& options,
    const std::shared_ptr<Departures>& departures);

/// Returns a communicator over a process group of the caller's, which must be one of nccl.
/// Collective; blocks. The communicator never closes the group, but an operation that fails or
/// takes too long aborts it.
std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    c10::Device device,
    const WorldOptions& options);

}  // namespace sherd
