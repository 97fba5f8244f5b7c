// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "configuration/configuration.h"
#include "configuration/network_file.h"
#include "forecast/plan.h"
#include "sherd/export.h"

namespace sherd {

/// Options of search_plans.
struct SearchOptions {
  int64_t ranks = 0;      ///< number of ranks; 0: the larger of device.emulate and device.ranks
  NetworkFile network{};  ///< with the speed of its devices
  /// Sequences of a step on all ranks; 0: as many as the configuration has on this number of ranks.
  int64_t sequences = 0;
  std::string device{};  ///< as PlanOptions::device
  int64_t rows = 10;     ///< arrangements to propose
};

/// One way to divide a run among its ranks, as `sherd plan` plans it.
struct SearchRow {
  Configuration configuration{};  ///< with derived values, without a budget
  /// The keys that differ from those of the configuration that was searched, as section.key and
  /// TOML.
  std::vector<std::pair<std::string, std::string>> settings{};
  WorldPlan plan{};  ///< exactly that of plan_run
};

/// The arrangements that can't be used for one reason.
struct RefusedArrangements {
  std::string reason{};  ///< the error that a run would give
  int64_t count = 0;
};

/// The fastest arrangements of a run, and what is wrong with the others.
struct SHERD_API SearchResult {
  std::string title{};
  int64_t memory = 0;             ///< most bytes of a rank
  int64_t sequences = 0;          ///< of a step, on all ranks
  int64_t seq = 0;                ///< tokens of a sequence
  std::vector<SearchRow> rows{};  ///< the shortest step first
  int64_t slower = 0;             ///< others that fit
  /// Estimated: the seconds of the fastest of those, and of the slowest; 0: there are none.
  double slower_from = 0;
  double slower_to = 0;
  int64_t too_large = 0;    ///< arrangements that fit with no recompute and no prefetch depth
  int64_t least_bytes = 0;  ///< estimated: the bytes of the smallest of those; 0: there are none
  std::string smallest{};   ///< that one, in words
  std::vector<RefusedArrangements> refused{};

  /// Returns a table of the rows, and the reasons against the others.
  std::string to_text() const;
  std::string to_json() const;
};

/// Searches for the shortest step of a model on a number of ranks with a given number of sequences:
/// over the groups of HSDP, strategies, ranks that share sequences and experts, micro-batches, and
/// for each of these the prefetch depth and recomputation that make the shortest step within the
/// memory (memory.budget, or that of the network's devices). Other keys are those of the
/// configuration, but for shard.keep_gathered, which is 0. Throws if nothing fits, for a network
/// without a device's speed, and if no memory is given.
///
/// All arrangements are estimated from dry runs of a few layers; the best are then planned, so that
/// rows are exactly what plan_run says of them.
SHERD_API SearchResult
search_plans(const Configuration& configuration, const SearchOptions& options);

}  // namespace sherd
