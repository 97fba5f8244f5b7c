// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "configuration/configuration.h"
#include "forecast/plan.h"

namespace sherd {

/// Returns the configuration with prefetch depth, kept units and recomputation chosen for the
/// shortest predicted step that fits memory.budget. A smaller budget never gets a shorter predicted
/// step (if the network is known) or a higher predicted peak. Throws if nothing fits, and names
/// what would. A pure function, except that the budget "auto" is the free memory of the device, or
/// the memory that `options.network` gives.
Configuration within_budget(
    const Configuration& configuration, int64_t ranks, const PlanOptions& options);

/// The largest inputs that fit with the choices of a budget.
struct Room {
  int64_t batch = 0;  ///< largest batch
  int64_t seq = 0;    ///< longest sequence
};
/// Returns them for a configuration that within_budget() has returned.
Room room_in_budget(const Configuration& configuration, int64_t ranks, const PlanOptions& options);

}  // namespace sherd
