// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "forecast/ledger.h"
#include "forecast/plan.h"
#include "forecast/rehearsal.h"
#include "plan/price.h"

// From a rehearsal without a device to bytes by name and seconds.
namespace sherd {

/// The costs of a run's parts, and their source; empty if unknown.
struct RunCosts {
  Costs costs;
  std::string from;
};

/// Returns the type of device that a plan is for: a GPU, even if this machine has none, unless the
/// run is meant for CPUs.
c10::DeviceType target_of(const Configuration& configuration, const PlanOptions& options);

/// Returns measured times if there are any, otherwise estimates from the operations of matrix
/// products and the speed of a device.
RunCosts costs_of(
    const Configuration& configuration,
    const Rehearsal& rehearsal,
    int64_t ranks,
    const PlanOptions& options);

/// Returns the same for a network that is known. `options.network` has the device.
RunCosts costs_of(
    const Configuration& configuration,
    const Rehearsal& rehearsal,
    const PlanOptions& options,
    const Network& network);

Ledger planned_ledger(const Rehearsal& rehearsal, c10::DeviceType target, int64_t ranks);

}  // namespace sherd
