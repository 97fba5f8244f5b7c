// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/comm/mesh.h"

namespace sherd {

class Unit;

/// This rank's elements of one parameter: all that optimizers and checkpoints see of a model. The
/// tensors are flat, of equal length and possibly empty, and their addresses never change.
struct ParameterShard {
  std::string name;              ///< within the root's module
  std::vector<int64_t> shape{};  ///< shape of the whole parameter
  bool trainable = true;         ///< when it was sharded

  at::Tensor main{};          ///< main weight
  at::Tensor gradient{};      ///< main gradient; undefined unless trainable
  at::Tensor model_weight{};  ///< undefined where the model computes with the main weight itself

  int64_t begin = 0;     ///< first of the elements, counted in the parameter
  int64_t replica = 0;   ///< number of this rank among those that hold the same elements
  int64_t replicas = 1;  ///< number of ranks that hold the same elements

  // Position in this rank's part of the group's flat buffer.
  int64_t group = 0;       ///< number of the group, counted over all units
  int64_t group_size = 0;  ///< elements of that part, padding included
  int64_t offset = 0;      ///< first of the elements in that part

  Mesh mesh;        ///< ranks that hold the parameter
  DataAxes axes{};  ///< data-parallel axes of the mesh
  /// Communicators of the axes along which ranks hold different elements. A norm is summed over
  /// these.
  std::vector<Communicator*> norm_communicators{};
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

/// Zeros for each element of some shards.
struct ShardBuffers {
  std::vector<at::Tensor> storages;  ///< one for each group
  std::vector<at::Tensor> pieces;    ///< one for each shard, in the shape of its main weight
};
/// Allocates optimizer state: flat buffers that are laid out as the main weights are. Shards of one
/// group must be neighbours.
ShardBuffers allocate_like_main(const std::vector<ParameterShard>& shards, c10::ScalarType dtype);

/// Shards whose squares are summed over the same ranks.
struct NormDomain {
  std::vector<Communicator*> communicators;
  std::vector<size_t> shards;  ///< numbers in the given list
};
/// Sorts shards by the ranks that their squares are summed over; in the same order on every rank.
std::vector<NormDomain> norm_domains(const std::vector<ParameterShard>& shards);

}  // namespace sherd
