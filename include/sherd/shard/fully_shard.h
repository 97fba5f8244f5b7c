// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/program.h"
#include "sherd/shard/module_ref.h"
#include "sherd/shard/options.h"

namespace torch::optim {
class Optimizer;
}

namespace sherd {

/// Makes a module a unit of fully sharded training. A unit owns the module's parameters, except
/// those of units inside it: they are all-gathered just before the module computes and released
/// (resharded) just after, and their gradients are reduced. Shard inner modules first and the whole
/// model last; that one is the root. Call the modules through their holder (SHERD_MODULE) or
/// sherd::call: released parameters throw when they are read.
///
///   // struct BlockImpl and struct NetImpl are torch::nn::Modules; NetImpl has a
///   // std::vector<Block> layers, and its forward returns the loss.
///   SHERD_MODULE(Block);  // in place of TORCH_MODULE
///   SHERD_MODULE(Net);
///
///   auto world = sherd::World::from_environment();  // mpirun, torchrun, srun, or alone
///   sherd::Mesh mesh(world, {{"dp", world.size()}});
///   Net model;
///   for (auto& layer : model->layers) sherd::fully_shard(layer, {.mesh = mesh});
///   sherd::fully_shard(model, {.mesh = mesh});  // the root, last
///   sherd::AdamW optimizer(model, {.lr = 3e-4, .max_norm = 1});
///
///   auto loss = model(x, target);  // tensors on world.device()
///   loss.backward();               // reduces the gradients
///   optimizer.step();              // clips and updates; the next forward has the new weights
///
/// All ranks take the first data-parallel rank's values of parameters and buffers; buffers are not
/// sharded. A parameter that two units use belongs to the nearest unit around both. A parameter
/// that is to be trained must require gradients now; it may be frozen later.
///
/// Collective; blocks. All ranks shard the same modules in the same order and with the same
/// options. Different modules throw here on all ranks, different options in the first pass. Also
/// throws if the module is sharded already, if the mesh lacks an axis that the options name, and
/// for parameters that can't be sharded (sparse, or made in inference mode).
SHERD_API void fully_shard(ModuleRef module, const UnitOptions& options = {});
/// The same for the root, with options that hold for the whole model:
///
///   sherd::fully_shard(model, {.mesh = mesh}, {.prefetch_depth = 2, .loss = sherd::Loss::sum});
///
/// Without them the root has the defaults of RootOptions. A unit inside another one takes none: the
/// model's first use throws and names the unit and its options.
SHERD_API void fully_shard(ModuleRef module, const UnitOptions& options, const RootOptions& root);

// ---- the step -----------------------------------------------------------------------------------

// In all functions below `model` is a root; they throw for other modules. The first use of a root,
// by any of them or by a forward, builds the program and opens communicators. It is collective,
// even if the function itself is not: all ranks must make it at the same point.

/// Sets the number of backward passes in a step (gradient accumulation; default 1). Their gradients
/// are added up. Not collective, but set the same number on all ranks, between steps. A new number
/// rebuilds the program. Throws if `count` is below 1, in the middle of a step, and after a
/// StepGraph was captured.
///
/// A backward that reaches no parameter (autograd::grad with respect to an input, a model that is
/// frozen completely) does not count; all ranks must run it alike.
SHERD_API void micro_batches(ModuleRef model, int64_t count);
/// Runs a pass without data: joins all collectives of the other ranks' pass and contributes zero
/// gradients. Call it once for each forward and backward that the others run with data; under
/// NoGradGuard, once for each forward. Collective; blocks. Throws during a pass, and if the step
/// already has all its backward passes.
SHERD_API void idle_pass(ModuleRef model);
/// Blocks the host until all communication of the model on this rank is done. After a pass has
/// thrown it returns at once, because that communication may never end; the next pass waits for it.
/// Not collective.
SHERD_API void finish(ModuleRef model);

/// Returns the tensors to build a torch optimizer over: this rank's elements of the main weight
/// (master weight) of each trainable parameter, flat; views, not copies. Parameters without
/// elements on this rank are left out, so ranks may get different numbers of tensors, or none. The
/// tensors have a grad() from the end of the step's last backward until publish(); with
/// Loss::per_token, only inside step(). Parameters that are frozen by then have none. Not
/// collective; does not block.
SHERD_API std::vector<at::Tensor> parameters(ModuleRef model);
/// Returns the same tensors with the parameters' full names, in the same order on all ranks; a
/// tensor is empty where this rank has no elements.
SHERD_API std::vector<std::pair<std::string, at::Tensor>> named_parameters(ModuleRef model);
/// Makes the model compute with the changed main weights from the next pass on, and drops the
/// gradients. Call it on all ranks after a torch optimizer's step(); sherd::step and AdamW::step
/// include it. Sends nothing and does not block: the copy to the model weight runs on the current
/// stream, and the next gathers wait for it. Not collective. Throws in the middle of a step, and
/// with Loss::per_token if the gradients were not divided by tokens (use sherd::step).
SHERD_API void publish(ModuleRef model);

/// Options of sherd::step, AdamW::step and gradient_norm.
struct StepOptions {
  /// Tokens that this rank trained on in this step. Required with Loss::per_token, an error with
  /// any other loss.
  std::optional<int64_t> tokens{};
};
/// Updates the weights with a torch optimizer and publishes them. With Loss::per_token it first
/// divides the gradients by the tokens of all ranks, which blocks. Collective. Throws if the
/// optimizer holds module parameters or none of sherd::parameters(model), if backward passes are
/// missing, and for tokens that are missing, unexpected or 0 on all ranks.
SHERD_API void step(
    ModuleRef model, torch::optim::Optimizer& optimizer, const StepOptions& options = {});

/// Returns the L2 norm of the step's gradient over all parameters and ranks. Each element counts
/// once: replicas are not counted twice, and ranks along an axis `ep` (expert parallelism) hold
/// different elements. Call it after the step's last backward and before the update, with tokens
/// as for step(). Collective; blocks. With AdamW use AdamW::gradient_norm, which costs nothing; the
/// norms of single parameters are in norms() (diagnostics.h).
SHERD_API double gradient_norm(ModuleRef model, const StepOptions& options = {});

// ---- looking inside -----------------------------------------------------------------------------

/// Returns the step as data, to print, count or compare. The reference is valid until another
/// program replaces it: when the units are called in another order, or the number of micro-batches
/// changes.
SHERD_API const Program& program(ModuleRef model);
/// Returns copies of all main weights (master weights), in full, by name, on every rank's device:
/// takes the memory of the whole model. Call it between passes. Collective; blocks.
SHERD_API std::vector<std::pair<std::string, at::Tensor>> full_parameters(ModuleRef model);
/// Runs `edit` while the module's parameters have the values of their main weights (master
/// weights), in full and in the main weights' dtype, then stores what it wrote in main and model
/// weights. Parameters of units inside this one are not included. It must write the same on all
/// ranks; if it throws, nothing changes. Call it between steps, when the parameters have values;
/// throws otherwise. Collective; blocks.
///
///   sherd::edit_parameters(layer, [&] { layer->up->weight.mul_(0.5); });
SHERD_API void edit_parameters(ModuleRef unit, const std::function<void()>& edit);

/// Gathers the parameters of one unit in full, outside its calls, into memory of their own: they
/// can be read until release(), the next pass or the next update. What is written to them is lost;
/// use edit_parameters(). Units that are kept gathered are released, and gathered again in the next
/// forward. Collective; blocks. Throws if the module is not a unit, during a pass, and if
/// parameters have no values.
SHERD_API void gather(ModuleRef unit);
/// Releases what gather() gathered, if anything. Not collective; does not block. Throws if the
/// module is not a unit.
SHERD_API void release(ModuleRef unit);

/// The buffer for a parameter's gradient, for custom autograd functions that write it themselves
/// instead of returning it.
struct GradientTarget {
  at::Tensor buffer;      ///< in the parameter's shape; the dtype may differ from the parameter's
  bool overwrite = true;  ///< true: set the buffer; false: add to it
};
/// Returns where to write the gradient of `parameter`, for use within a backward. The caller must
/// then write it, and return an undefined gradient to autograd. Returns nothing, and the caller
/// returns the gradient as usual, if the parameter belongs to no unit, is frozen or has hooks, if
/// its unit is not in a backward, or if autograd was asked for some gradients only.
SHERD_API std::optional<GradientTarget> gradient_target(const at::Tensor& parameter);

}  // namespace sherd
