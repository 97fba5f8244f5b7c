// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "forecast/rehearse.h"

namespace sherd::app {

struct SmallUnits {
  int64_t units = 128;  ///< units, each with four linears of 64 x 64
  int64_t steps = 10;   ///< number of timed steps
  double load = 0;      ///< seconds of steps before them
  bool graph = false;
};

struct SmallUnitsResult {
  double seconds = 0;  ///< median time of a step (forward, backward)
  double host = 0;     ///< part of it until the host has enqueued the step
  /// The timed steps. Weights do not change, so the gradient norm is computed once.
  std::vector<RehearsedStep> steps{};
};

/// Runs many units with little to compute, as one rank of an emulated world of 8: the time of a
/// step is the host's work for each unit, or the device's launch overhead.
SmallUnitsResult time_small_units(c10::Device device, const SmallUnits& options);

}  // namespace sherd::app
