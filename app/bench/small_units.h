// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "forecast/rehearse.h"

namespace sherd::app {

struct SmallUnits {
  int64_t units = 128;  ///< of four linears of 64 x 64 each
  int64_t steps = 10;   ///< that are timed
  double load = 0;      ///< seconds of steps before them
  bool graph = false;
};

struct SmallUnitsResult {
  double seconds = 0;  ///< of a step (forward, backward): the median
  double host = 0;     ///< of them, until the host has enqueued all of it
  /// Those that were timed. Weights stay as they are, and so does the norm, which is taken once.
  std::vector<RehearsedStep> steps{};
};

/// Many units with next to nothing to compute, one rank of an emulated world of 8: what a step
/// takes is the host's work for each unit, or that of the device to begin a kernel.
SmallUnitsResult time_small_units(c10::Device device, const SmallUnits& options);

}  // namespace sherd::app
