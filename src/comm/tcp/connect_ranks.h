// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/tcp/descriptor.h"
#include "comm/tcp/roster.h"

namespace sherd {

/// Returns why this process can't have a connection to each of `size - 1` other ranks, with the
/// remedy, or an empty text.
std::string too_few_files_for(int64_t size);

/// Connects this rank to all others of the roster, one connection for each pair: the higher rank
/// connects, the lower one accepts at `listener`. Both prove that they know the roster's token
/// before they take part. Whoever else connects is ignored: it holds up nothing, and is
/// disconnected at the end. Returns the connections by rank, without one for this rank itself.
/// Throws an error that names the ranks which are missing at the deadline, or the one that can't be
/// reached. Collective; blocks.
std::vector<Descriptor> connect_ranks(
    const Descriptor& listener,
    const Roster& roster,
    int64_t rank,
    std::chrono::steady_clock::time_point deadline);

}  // namespace sherd
