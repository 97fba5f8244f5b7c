// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "configuration/configuration.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "sherd/comm/world.h"

// The inputs of a run.
namespace sherd {

/// Returns the configuration with the model of model.from and the choices of a memory budget filled
/// in. The same on all ranks. Collective.
Configuration decided(const Configuration& configuration, const World& world);

/// Throws unless all ranks have the same configuration: ranks that train differently would wait for
/// each other for ever. Collective.
void check_same_everywhere(const Configuration& configuration, const World& world);

/// The data of a run. A token beyond the vocabulary is found here, before anything is trained, not
/// when it is drawn. Collective.
Dataset checked_training_data(const Configuration& configuration, const World& world);
std::optional<Dataset> checked_validation_data(
    const Configuration& configuration, const World& world);

Sampler::Options sampling_of(
    const Configuration& configuration, const Dataset& dataset, int64_t ranks);

}  // namespace sherd
