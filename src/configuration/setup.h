// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configuration/configuration.h"
#include "data/dataset.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "sherd/shard/options.h"

// From the words of a configuration to the things they name.
namespace sherd {

/// What products are made in.
c10::ScalarType compute_dtype_of(const PrecisionSection& section);
/// Of the model files of a checkpoint; none: that of the main weights.
std::optional<c10::ScalarType> export_dtype_of(const Configuration& configuration);
/// The dtype that the model files of a checkpoint have in the end.
c10::ScalarType saved_dtype_of(const Configuration& configuration);
World world_of(const Configuration& configuration);
/// `dp`, and `dp_outer` where ranks are in several groups.
Mesh mesh_of(const ShardSection& shard, const World& world);
/// Its axes, outermost first.
std::vector<std::pair<std::string, int64_t>> axes_of(const ShardSection& shard, int64_t ranks);
/// The word of shard.strategy that holds: a world of one has nobody to share with, and gathers and
/// reductions would be copies.
std::string strategy_of(const Configuration& configuration, int64_t ranks);
/// Returns the options that all units have, without keep_gathered.
UnitOptions unit_options_of(const Configuration& configuration, const Mesh& mesh);
RootOptions root_options_of(const Configuration& configuration);
/// Built without memory and sharded. Collective.
std::shared_ptr<LanguageModel> sharded_model_of(
    const Configuration& configuration, const Mesh& mesh);
/// The same, given its initial values. Collective.
std::shared_ptr<LanguageModel> model_of(const Configuration& configuration, const Mesh& mesh);
/// With the widths worked out that are 0, and all that a folder says.
ModelSection resolved(ModelSection model);
Dataset training_data_of(const Configuration& configuration);
std::optional<Dataset> validation_data_of(const Configuration& configuration);

}  // namespace sherd
