// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/launch.h"
#include "comm/session.h"
#include "sherd/comm/world.h"

namespace sherd {

/// Opens the backend tcp: CPU tensors, moved over sockets by a progress thread of the world
/// (Engine). See BackendEntry::open. The ranks meet at the launcher's store. A process alone needs
/// none.
std::unique_ptr<Session> open_tcp(const Launch& launch, const WorldOptions& options);

/// Opens it among ranks that meet at a store of the caller's; see World::over().
std::unique_ptr<Session> open_tcp_over(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    const WorldOptions& options);

}  // namespace sherd
