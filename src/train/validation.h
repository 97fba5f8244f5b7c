// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "configuration/configuration.h"
#include "data/dataset.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// Returns the mean loss over all targets of the data, which the ranks share, data.batch
/// samples of each at a time. Collective; waits for the device.
double validation_loss(
    LanguageModel& model,
    const Dataset& data,
    const Configuration& configuration,
    const World& world);

}  // namespace sherd
