// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/buffer/dbuffer.h"
#include "sherd/comm/mesh.h"
#include "sherd/plan/layout.h"
#include "sherd/plan/placement.h"
#include "sherd/plan/program.h"
#include "sherd/shard/precision.h"

namespace torch::nn {
class Module;
}

namespace sherd {

/// What a step's gradients are, given each rank's loss of each micro-batch.
enum class Loss : uint8_t {
  mean,       ///< mean over data-parallel ranks, sum over micro-batches
  sum,        ///< sum over both
  per_token,  ///< sum over both, divided once by the number of tokens of all ranks
};

/// Other ways for some parameters of a unit.
struct ParameterRule {
  /// Names within the unit; '*' stands for anything.
  std::string match;
  std::optional<Mesh> mesh{};
  std::optional<DataAxes> axes{};
  std::optional<Placement> placement{};
  std::optional<Granule> granule{};
  std::optional<Precision> precision{};
};

/// How a unit is sharded. All ranks pass the same.
struct ShardOptions {
  /// Default: all ranks of this run along one axis, `dp`.
  std::optional<Mesh> mesh{};
  /// The data-parallel axes of the mesh; default: `dp`, and `dp_outer` where the mesh has it.
  std::optional<DataAxes> axes{};
  Placement placement{Strategy::optim_grads_params};
  Precision precision{};
  /// Stay gathered between forward and backward: one gather less, at the price of memory.
  bool keep_gathered = false;
  /// Units to gather when this one starts its forward. Default: the next `prefetch_depth`.
  std::vector<std::shared_ptr<torch::nn::Module>> prefetch{};
  std::vector<ParameterRule> rules{};

  // Of the root alone; what inner units say here is not read.
  int64_t prefetch_depth = 1;  ///< in units
  Loss loss = Loss::mean;
  /// Where full parameters and gradients lie while a unit needs them.
  MemoryKind memory = MemoryKind::planned;
  /// The arena is NCCL's own memory, registered with the communicators that move it.
  bool symmetric = false;
  int64_t budget = 0;  ///< bytes that Sherd may take on this device; 0: no limit
};

}  // namespace sherd
