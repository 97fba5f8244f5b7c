// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/comm/world.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

class Unit;

/// Elements that a rank holds, for the comparison with ranks that hold the same.
struct ReplicaItem {
  std::string parameter{};
  const char* weight = "";  ///< which of its weights
  at::Tensor elements{};    ///< flat
  uint64_t identity = 0;    ///< equal where ranks hold the same elements
};

/// Returns what this rank holds, of all units in the order of units, groups and members: as many
/// items on every rank. `refreshed`: model weights that are not sharded have all new elements.
std::vector<ReplicaItem> replica_items(const std::vector<Unit*>& units, bool refreshed);
/// Returns a checksum of the bits of a tensor: on CPU CRC-32C, on a device their sum.
std::vector<int64_t> checksums(const std::vector<ReplicaItem>& items);
/// Compares identities and checksums, which are those of all ranks, one rank after another.
std::vector<ReplicaDifference> compare_replicas(
    const std::vector<ReplicaItem>& items, const std::vector<int64_t>& numbers, int64_t ranks);

}  // namespace sherd
