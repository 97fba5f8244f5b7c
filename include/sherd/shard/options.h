// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/comm/mesh.h"
#include "sherd/plan/cut.h"
#include "sherd/plan/layout.h"
#include "sherd/plan/placement.h"
#include "sherd/plan/program.h"
#include "sherd/shard/precision.h"

namespace torch::nn {
class Module;
}

namespace sherd {

/// The combination of the losses of all ranks and micro-batches into the gradients of a step.
enum class Loss : uint8_t {
  mean,       ///< mean over data-parallel ranks, sum over micro-batches
  sum,        ///< sum over ranks and micro-batches
  per_token,  ///< sum over both, divided by the tokens of all ranks (StepOptions::tokens)
};

/// Options for the parameters of a unit that match a pattern; absent options are the unit's. For
/// each option, the last matching rule that sets it wins. Units may share rules: a rule may match
/// no parameter in one unit, but the model's first use throws if its pattern matches none in any
/// unit that has it.
struct ParameterRule {
  /// Pattern of parameter names within the unit; '*' matches any text, dots included.
  std::string match;
  std::optional<Mesh> mesh{};            ///< also resets the axes to this mesh's defaults
  std::optional<DataAxes> axes{};        ///< data-parallel axes of the mesh
  std::optional<Placement> placement{};  ///< what is sharded over which axis
  std::optional<Granule> granule{};      ///< where the parameter may be cut; default: anywhere
  std::optional<Precision> precision{};  ///< replaces all of the unit's precision
  /// The part of a larger parameter of this name that each matching parameter is; its shape must be
  /// that of the part. All ranks of its data-parallel axes have the same part; other ranks of the
  /// world have the others, of the same size, and together they have the whole. Initial values by
  /// key, norms and checkpoints are those of the whole, so they do not depend on how it is cut.
  /// Differs between ranks, unlike all other options. Default: the parameter is the whole.
  std::optional<Cut> cut{};
};

/// Options of a unit, for fully_shard. Must be equal on all ranks, but for ParameterRule::cut.
struct UnitOptions {
  /// The ranks to shard over, along data-parallel axes alone (see Mesh::sub and Mesh::flatten). The
  /// root's has all ranks of the world, and so has that of every parameter without a cut. Default:
  /// all ranks along one axis, `dp`, of a new world that is opened with default WorldOptions and
  /// shared by all units without a mesh.
  std::optional<Mesh> mesh{};
  /// The data-parallel axes of the mesh; default: `dp`, and `dp_outer` where the mesh has it.
  std::optional<DataAxes> axes{};
  /// The strategy: which of parameters, gradients and optimizer state are sharded over which axis.
  /// Default: all three over the inner axis (ZeRO-3, FSDP).
  Placement placement{Strategy::optim_grads_params};
  /// Dtypes of weights, gradients and reductions. Default: the parameter's own dtype for all.
  Precision precision{};
  /// Keeps the parameters gathered from the forward to the backward (no reshard after the forward):
  /// one all-gather less, more memory.
  bool keep_gathered = false;
  /// Units to gather when this one begins its forward. Default: the next units, as many as
  /// RootOptions::prefetch_depth. The model's first use throws if a module of the list is not a
  /// unit of the model, and if this unit contains other units.
  std::vector<std::shared_ptr<torch::nn::Module>> prefetch{};
  /// The same for its backward.
  std::vector<std::shared_ptr<torch::nn::Module>> backward_prefetch{};
  /// Patterns of parameters of the module that are left alone (see ParameterRule::match): they stay
  /// whole on every rank, their gradients are not reduced, and no optimizer of Sherd updates them.
  /// Like buffers they get the first data-parallel rank's values in fully_shard(), and are saved
  /// whole in checkpoints. fully_shard() throws if such a parameter is on the meta device or
  /// belongs to a unit inside this one; the model's first use throws if a pattern matches no
  /// parameter in any unit that has it.
  std::vector<std::string> ignored{};
  /// Exceptions for some parameters.
  std::vector<ParameterRule> rules{};
};

/// Options of a whole model, for the fully_shard of its root. Must be equal on all ranks. It is an
/// error to give them to a unit inside another one: the model's first use throws.
struct RootOptions {
  int64_t prefetch_depth = 1;  ///< number of units gathered ahead; 0: none; negative: an error
  Loss loss = Loss::mean;      ///< how losses combine into gradients
  /// The memory of full parameters and gradients. Default: one arena with fixed addresses.
  MemoryKind memory = MemoryKind::planned;
  /// Allocates the arena with NCCL's allocator and registers it with the communicators that use it
  /// (symmetric memory). Needs NCCL and MemoryKind::planned; the model's first use throws
  /// otherwise.
  bool symmetric = false;
  /// Limit in bytes for weights, gradients and arena together on this rank; the model's first use
  /// throws if it needs more. The optimizer's state and activations are not counted. 0: no limit.
  int64_t budget = 0;
};

}  // namespace sherd
