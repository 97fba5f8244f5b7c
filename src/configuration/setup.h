// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "configuration/axes.h"
#include "configuration/configuration.h"
#include "configuration/network_file.h"
#include "data/dataset.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "sherd/shard/options.h"

// Functions that turn a configuration into the objects that it describes.
namespace sherd {

/// Returns the dtype of matrix products.
c10::ScalarType compute_dtype_of(const PrecisionSection& section);
/// Returns SaveOptions::export_fp8: the weights of products, if the model is saved so.
std::vector<std::string> export_fp8_of(
    const Configuration& configuration, const LanguageModel& model);
/// Returns SaveOptions::export_dtype; nothing: the main weights' dtype.
std::optional<c10::ScalarType> export_dtype_of(const Configuration& configuration);
/// Returns the dtype of a checkpoint's model files.
c10::ScalarType saved_dtype_of(const Configuration& configuration);
World world_of(const Configuration& configuration);
/// Makes the mesh that all but parts of parameters are sharded over (data_axes_of()). Collective.
Mesh mesh_of(const Configuration& configuration, const World& world);
/// Returns the network for a run of so many ranks, with the axes of all its meshes.
Network network_of(const NetworkFile& file, const Configuration& configuration, int64_t ranks);
/// Returns shard.strategy, or `no_shard` for one rank (without memory.symmetric), where gathers and
/// reductions would be mere copies.
std::string strategy_of(const Configuration& configuration, int64_t ranks);
/// Returns the options that all units have, without keep_gathered.
UnitOptions unit_options_of(const Configuration& configuration, const Mesh& mesh);
RootOptions root_options_of(const Configuration& configuration);
/// Throws, naming the file or tensor, unless model.from has all weights of its model. Reads no
/// weights.
void check_weights_of(const Configuration& configuration);
/// Builds the model without memory and shards it. Collective.
std::shared_ptr<LanguageModel> sharded_model_of(
    const Configuration& configuration, const Mesh& mesh);
/// The same, with initial values. Collective.
std::shared_ptr<LanguageModel> model_of(const Configuration& configuration, const Mesh& mesh);
/// Returns the names of the weights whose products are in fp8: by precision.recipe, without those
/// of precision.keep.
std::set<std::string> fp8_weights_of(
    const Configuration& configuration, const LanguageModel& model);
/// Throws if a pattern of precision.keep matches no weight of the model that could be in fp8.
void check_keep(const Configuration& configuration);
/// Removes the patterns of which that is true, as for a model with fewer layers.
void drop_keep_without_weights(Configuration& configuration);
/// Returns the section with widths that are 0 computed, and with the values of model.from.
ModelSection resolved(ModelSection model);
Dataset training_data_of(const Configuration& configuration);
std::optional<Dataset> validation_data_of(const Configuration& configuration);

}  // namespace sherd
