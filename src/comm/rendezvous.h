// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "comm/launch.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// The store at which the ranks of a launcher without MPI meet: a TCPStore of the launcher's own or
/// of rank 0. Throws if none answers in time.
c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, std::chrono::milliseconds timeout);

/// Returns when all ranks have arrived at the store and say the same size. When the time is up, or
/// ranks disagree, every rank that came throws, naming who is missing or who says what. A store's
/// keys serve one meeting.
void await_all_ranks(c10d::Store& store, const Launch& launch, std::chrono::milliseconds timeout);

/// For a process alone.
c10::intrusive_ptr<c10d::Store> lone_store();

/// A store for ranks that already have a communicator: rank 0 serves it and tells the others where.
c10::intrusive_ptr<c10d::Store> shared_store(
    Communicator& communicator, std::chrono::milliseconds timeout);

}  // namespace sherd
