// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "data/dataset.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// The sizes of a run that its configuration alone does not tell.
struct RunSizes {
  int64_t parameters = 0;     ///< of the whole model
  int64_t data_tokens = 0;    ///< in the training file
  int64_t samples = 0;        ///< sequences in that file
  int64_t step_samples = 0;   ///< those of a step, of all ranks
  int64_t planned_bytes = 0;  ///< memory of a rank
};

RunSizes sizes_of(
    const Configuration& configuration,
    const World& world,
    const Dataset& data,
    const LanguageModel& model,
    int64_t planned_bytes);

/// Returns the lines that a run begins with: the model, the ranks, the data and its epochs,
/// the memory, and where results go. `configuration`: as decided() returns it.
std::vector<std::string> banner(
    const Configuration& configuration, const World& world, const RunSizes& sizes);

}  // namespace sherd
