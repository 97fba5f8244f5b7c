// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "forecast/ledger.h"
#include "forecast/plan.h"
#include "forecast/rehearsal.h"
#include "plan/price.h"

// From a rehearsal without a device to bytes by name and seconds.
namespace sherd {

/// What a run's parts cost, and who says so; empty: nobody does.
struct RunCosts {
  Costs costs;
  std::string from;
};

/// A GPU, unless the run is meant for CPUs: plans are made where there is none.
c10::DeviceType target_of(const Configuration& configuration, const PlanOptions& options);

/// Times as they were measured, or else from the products' operations and the speed of a device.
RunCosts costs_of(
    const Configuration& configuration,
    const Rehearsal& rehearsal,
    int64_t ranks,
    const PlanOptions& options);

Ledger planned_ledger(const Rehearsal& rehearsal, c10::DeviceType target, int64_t ranks);

}  // namespace sherd
