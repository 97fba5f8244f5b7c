// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "configuration/configuration.h"
#include "plan/price.h"
#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"
#include "sherd/plan/program.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

/// A pass of a run's model on the meta device, as one rank of a world of any size: the real units,
/// operations and program, and no memory.
struct Rehearsal {
  Program program;
  ModelBytes bytes{};
  OptimizerBytes optimizer{};
  std::vector<int64_t>
      saved_activations{};  ///< by unit: bytes that its forward leaves for the backward
  /// The most that a pass takes beyond the above: saved activations, and what comes and goes.
  int64_t activations = 0;
  int64_t parameters = 0;
  double flops_per_token = 0;
  std::vector<UnitOperations> operations{};  ///< by unit of the program
};

/// `target`: the kind of device that the run is meant for. `rank`: whose elements it has; ranks
/// differ by what they hold of the last parameters. The configuration's model is resolved.
Rehearsal dry_run(
    const Configuration& configuration, int64_t ranks, c10::DeviceType target, int64_t rank = 0);

}  // namespace sherd
