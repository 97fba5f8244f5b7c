// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configuration/configuration.h"

// The meshes of a run: names and sizes of their axes, outermost first, over the same ranks. Ranks
// of a group (shard.outer) are together, those that share a sequence next to one another: world
// rank = ((outer · dp + d) · cp + c) · tp + t. All functions throw, naming the key, if the axes
// don't divide the ranks.
namespace sherd {

using NamedSizes = std::vector<std::pair<std::string, int64_t>>;

/// Returns how many ranks share each sequence.
inline int64_t sharing_ranks_of(const Configuration& configuration) {
  return configuration.parallel.cp * configuration.parallel.tp;
}
/// Returns how many ranks, or groups of ranks that share sequences, have sequences of their own.
inline int64_t data_ranks_of(const Configuration& configuration, int64_t ranks) {
  return ranks / sharing_ranks_of(configuration);
}

/// Returns what divides the length of sequences that ranks share.
inline int64_t sequence_multiple_of(const Configuration& configuration) {
  return sharing_ranks_of(configuration) * (configuration.parallel.cp > 1 ? 2 : 1);
}

/// Returns the name of the axis over all ranks of a group: `dp`, or `dp_cp_tp` for example, where
/// `dp` are those with other sequences.
std::string data_axis_of(const Configuration& configuration);
/// Returns the axes of what every rank has whole: `dp_outer`, if there are groups, and that axis.
NamedSizes data_axes_of(const Configuration& configuration, int64_t ranks);
/// Returns those of ranks that share sequences: `dp_outer`, `dp`, `cp` and `tp`, without those of
/// one rank but `dp`. Nothing if no ranks do.
std::optional<NamedSizes> sequence_axes_of(const Configuration& configuration, int64_t ranks);
/// Returns those of experts: `dp_outer`, `edp` (ranks with the same experts) and `ep`. Nothing
/// without parallel.ep.
std::optional<NamedSizes> expert_axes_of(const Configuration& configuration, int64_t ranks);

/// Throws unless all of these exist.
void check_axes(const Configuration& configuration, int64_t ranks);

}  // namespace sherd
