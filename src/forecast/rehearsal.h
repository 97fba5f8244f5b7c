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

/// Those of a unit's operations (UnitOperations) that are products in fp8.
struct Fp8Operations {
  double forward = 0;
  double selective = 0;
};

/// The result of a dry run: one pass of the model on the meta device, as one rank of a world of any
/// size, with the real units, operations and program but no memory.
struct Rehearsal {
  Program program;
  ModelBytes bytes{};
  OptimizerBytes optimizer{};
  /// By unit: bytes that its forward saves for the backward.
  std::vector<int64_t> saved_activations{};
  /// Peak bytes of a pass beyond the above: saved activations and temporary tensors.
  int64_t activations = 0;
  int64_t parameters = 0;
  double flops_per_token = 0;
  int64_t exchange_axes = 0;                 ///< mesh axes along which ranks exchange activations
  std::vector<UnitOperations> operations{};  ///< by unit of the program
  std::vector<Fp8Operations> fp8{};          ///< by unit of the program
};

/// Runs a pass on the meta device. `target`: the type of device that the run is meant for. `rank`:
/// the rank whose shards it has; ranks may differ slightly. The configuration's model must be
/// resolved().
Rehearsal dry_run(
    const Configuration& configuration, int64_t ranks, c10::DeviceType target, int64_t rank = 0);

}  // namespace sherd
