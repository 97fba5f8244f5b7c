// SPDX-License-Identifier: Apache-2.0
#include "configuration/fewer_ranks.h"

#include <c10/util/Exception.h>

#include "configuration/axes.h"

namespace sherd {

std::optional<int64_t> micro_batches_for(
    const Configuration& configuration, int64_t before, int64_t ranks) {
  try {
    check_axes(configuration, ranks);
  } catch (const c10::ValueError&) {
    return std::nullopt;
  }
  const int64_t of_all = data_ranks_of(configuration, before) * configuration.data.micro_batches;
  const int64_t sharing = data_ranks_of(configuration, ranks);
  if (sharing == 0 || of_all % sharing != 0) return std::nullopt;
  return of_all / sharing;
}

std::optional<int64_t> fewer_ranks(
    const Configuration& configuration, int64_t before, int64_t below, int64_t least) {
  for (int64_t ranks = below - 1; ranks >= least; --ranks) {
    if (micro_batches_for(configuration, before, ranks)) return ranks;
  }
  return std::nullopt;
}

}  // namespace sherd
