// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "configuration/configuration.h"
#include "sherd/plan/placement.h"

namespace sherd {

// Both throw std::invalid_argument if no placement has these strategies.

/// Returns the placement of all parameters but those of experts that ranks share.
inline Placement placement_of(const ShardSection& shard) {
  const auto inner = strategy_from(shard.strategy);
  return shard.outer == 1 ? Placement(inner)
                          : Placement(inner, strategy_from(shard.outer_strategy));
}

/// Returns the placement of experts that ranks share, over the ranks that have the same ones.
inline Placement placement_of_experts(ShardSection shard) {
  shard.strategy = shard.expert_strategy.value_or(shard.strategy);
  shard.outer_strategy = shard.expert_outer_strategy.value_or(shard.outer_strategy);
  return placement_of(shard);
}

}  // namespace sherd
