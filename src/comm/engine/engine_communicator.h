// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "comm/engine/engine.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// Returns a new communicator among all ranks of the engine's transport, for CPU tensors.
/// Collective; blocks. The communicator keeps the engine alive. An operation that takes longer than
/// `timeout` throws.
std::shared_ptr<Communicator> engine_communicator(
    std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout);

}  // namespace sherd
