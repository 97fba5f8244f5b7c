// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "configuration/configuration.h"
#include "sherd/plan/placement.h"

namespace sherd {

/// One way to divide a run among its ranks.
struct Arrangement {
  int64_t outer = 1;                                 ///< groups of ranks (shard.outer)
  int64_t cp = 1;                                    ///< parallel.cp
  int64_t tp = 1;                                    ///< parallel.tp
  int64_t ep = 1;                                    ///< parallel.ep
  Strategy strategy = Strategy::optim_grads_params;  ///< within a group
  Strategy outer_strategy = Strategy::no_shard;      ///< between groups
  int64_t batch = 1;                                 ///< sequences of a micro-batch
  int64_t micro_batches = 1;
  friend bool operator==(const Arrangement&, const Arrangement&) = default;
};

/// The arrangements that a search compares.
struct SearchSpace {
  std::vector<Arrangement> arrangements;   ///< those that differ in the batch alone are together
  std::map<std::string, int64_t> refused;  ///< by reason: how many combinations of axes
};

/// Returns all of them: axes of every size that divides the ranks, the strategies that go together,
/// and every number of micro-batches that makes `sequences` a step. `node`: ranks of a node, which
/// bound the ranks of parallel.tp; 0: all ranks. The configuration's model must be resolved().
SearchSpace search_space(
    const Configuration& configuration, int64_t ranks, int64_t sequences, int64_t node);

/// Returns the configuration with an arrangement's keys, no budget, and no units kept gathered.
Configuration arranged(const Configuration& configuration, const Arrangement& arrangement);

/// Returns the number of sequences that all ranks together have in a step.
int64_t sequences_of_step(const Configuration& configuration, int64_t ranks);

/// Returns the keys that a search chooses, as section.key and TOML.
std::vector<std::pair<std::string, std::string>> chosen_keys(const Configuration& configuration);

std::string to_text(const Arrangement& arrangement);

}  // namespace sherd
