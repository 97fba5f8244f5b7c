// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "configuration/configuration.h"
#include "forecast/plan.h"

namespace sherd {

/// The configuration with prefetch depth, what stays gathered and what is recomputed chosen for the
/// shortest step that fits memory.budget. Of two budgets the smaller one gets no shorter step
/// (where the network is known) and no higher peak, as far as is estimated. Throws, saying what
/// would fit, where nothing does. A pure function, but for the budget "auto", which is what the
/// device has free, or `options.network` says it has.
Configuration within_budget(
    const Configuration& configuration, int64_t ranks, const PlanOptions& options);

/// What fits beside what was chosen.
struct Room {
  int64_t batch = 0;  ///< the largest
  int64_t seq = 0;    ///< the longest
};
/// `configuration` is one that within_budget() returned.
Room room_in_budget(const Configuration& configuration, int64_t ranks, const PlanOptions& options);

}  // namespace sherd
