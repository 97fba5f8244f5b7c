// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shard/cut_agreement.h"
#include "sherd/comm/mesh.h"
#include "sherd/plan/cut.h"

namespace sherd {

class Unit;

/// This rank's elements of one parameter: all that optimizers and checkpoints see of a model. The
/// tensors are flat, of equal length and possibly empty, and their addresses never change.
struct ParameterShard {
  std::string name;              ///< within the root's module
  std::vector<int64_t> shape{};  ///< shape of the parameter: of the part if it is cut
  std::optional<Cut> cut{};      ///< the part of a whole that the parameter is; none: the whole
  bool trainable = true;         ///< when it was sharded

  at::Tensor main{};          ///< main weight
  at::Tensor gradient{};      ///< main gradient; undefined unless trainable
  at::Tensor model_weight{};  ///< undefined where the model computes with the main weight itself

  int64_t begin = 0;     ///< first of the elements, counted in the parameter
  int64_t replica = 0;   ///< number of this rank among those of the world with the same elements
  int64_t replicas = 1;  ///< number of ranks of the world that hold the same elements
  /// Whether this rank adds the elements to sums over the world, so that they count once: the first
  /// replica does, and an emulated rank, which is alone.
  bool counted = true;

  // Position in this rank's part of the group's flat buffer.
  int64_t group = 0;       ///< number of the group, counted over all units
  int64_t group_size = 0;  ///< elements of that part, padding included
  int64_t offset = 0;      ///< first of the elements in that part

  Mesh mesh;        ///< ranks that hold the parameter
  DataAxes axes{};  ///< data-parallel axes of the mesh

  /// Returns the shape of the whole parameter.
  const std::vector<int64_t>& whole_shape() const { return cut ? cut->shape : shape; }
};

/// Returns the shards of all parameters of the units, frozen ones included, in the order of units,
/// groups and members: the same on every rank. The last unit is the root.
std::vector<ParameterShard> parameter_shards(const std::vector<Unit*>& units);
/// Returns those that were trainable when they were sharded, in the same order.
std::vector<ParameterShard> trainable_only(const std::vector<ParameterShard>& shards);
/// Returns the names of those that are frozen, with commas, or "none". `frozen` has an entry for
/// each that was trainable when it was sharded.
std::string names_of_frozen(
    const std::vector<ParameterShard>& shards, const std::vector<bool>& frozen);

/// Returns the whole main weight that a shard with a cut belongs to, from the parts of all ranks;
/// takes its memory. Collective; blocks.
at::Tensor join_parts(const ParameterShard& shard, const World& world);

/// Zeros for each element of some shards.
struct ShardBuffers {
  std::vector<at::Tensor> storages;  ///< one for each group
  std::vector<at::Tensor> pieces;    ///< one for each shard, in the shape of its main weight
};
/// Allocates optimizer state: flat buffers that are laid out as the main weights are. Shards of one
/// group must be neighbours.
ShardBuffers allocate_like_main(const std::vector<ParameterShard>& shards, c10::ScalarType dtype);

}  // namespace sherd
