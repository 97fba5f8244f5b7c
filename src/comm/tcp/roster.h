// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/tcp/address.h"

namespace sherd {

/// A secret of one world. Who knows it has read the ranks' store, and knows the run's token
/// (token_proof()), if there is one.
using Token = std::array<uint8_t, 32>;

/// Where the ranks of a world listen.
struct Roster {
  struct Entry {
    Address address;
    std::string machine;  ///< equal for ranks of one machine
  };
  std::vector<Entry> ranks;
  Token token{};
};

/// Returns what tells this machine from others: its name and when it was started.
std::string this_machine();

/// Returns the names of the ranks' hosts, by rank; none if all ranks run on one machine.
std::vector<std::string> hosts_of(const Roster& roster);

/// Exchanges the roster over the store. `own`: where this rank listens. If `refusal` is not empty,
/// this rank can't take part, and all ranks throw it. Throws also if some ranks listen where those
/// of other machines can't reach them, and if a rank ends meanwhile. Collective; blocks, at each of
/// its two steps for `timeout` at most.
Roster exchange_roster(
    c10d::Store& store,
    int64_t rank,
    int64_t size,
    const Roster::Entry& own,
    const std::string& refusal,
    std::chrono::milliseconds timeout);

}  // namespace sherd
