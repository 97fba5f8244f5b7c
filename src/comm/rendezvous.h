// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

#include "comm/launch.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// Opens the store at which the ranks of a launcher without MPI meet: a TCPStore that the launcher
/// or rank 0 serves. Blocks until it answers; throws if it does not in time.
c10::intrusive_ptr<c10d::Store> open_store(const Launch& launch, std::chrono::milliseconds timeout);

/// Blocks until all ranks have arrived at the store and named the same size of the world. When the
/// time is up, or if sizes differ, it throws on every rank that arrived, with the missing ranks or
/// both sizes. Collective. The keys of a store serve one call: give each call a PrefixStore of its
/// own.
void await_all_ranks(c10d::Store& store, const Launch& launch, std::chrono::milliseconds timeout);

/// To be called on every rank that has read from the store that `what` was refused. The store may
/// end with rank 0, which therefore blocks until `others` other ranks have called it, for 2 seconds
/// at most.
void hear_refusal(c10d::Store& store, const std::string& what, int64_t rank, int64_t others);

/// Returns the keys of a new world in the one store of this process, which is the launcher's.
/// Blocks until all ranks have arrived there; throws as open_store() and await_all_ranks().
/// Collective.
c10::intrusive_ptr<c10d::Store> meet_at_launchers_store(
    const Launch& launch, std::chrono::milliseconds timeout);

/// Returns a store in this process's memory, for a process alone.
c10::intrusive_ptr<c10d::Store> lone_store();

/// Opens a store among ranks that already have a communicator for CPU tensors: rank 0 serves it and
/// tells the others where. Collective; blocks.
c10::intrusive_ptr<c10d::Store> shared_store(
    Communicator& communicator, std::chrono::milliseconds timeout);

}  // namespace sherd
