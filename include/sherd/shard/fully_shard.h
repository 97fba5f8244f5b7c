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
/// With ParameterRule::cut, a module's parameter is this rank's part of a larger one (for tensor or
/// expert parallelism): it is sharded over the ranks that have the same part, and the ranks of the
/// world together have the whole. The gradient of each element is the sum over the ranks that hold
/// it, divided (Loss::mean) by the number of all ranks of the world.
///
/// All ranks take the first data-parallel rank's values of parameters and buffers. Both move to
/// world.device(); buffers are not sharded. A parameter that two units use belongs to the nearest
/// unit around both. A parameter that is to be trained must require gradients now; it may be frozen
/// later.
///
/// Collective; blocks. Allocates this rank's shards in place of the full parameters; the first use
/// of the model allocates the main gradients and the arena.
///
/// All ranks shard the same modules in the same order and with the same options. Different modules
/// throw here on all ranks, different options in the first pass. Also throws if the module is
/// sharded already, if a mesh lacks an axis that the options name or has another axis of several
/// ranks than the data-parallel ones (use Mesh::sub or Mesh::flatten), if the placement shards over
/// an outer axis that the mesh does not have, for a cut whose part has another shape than the
/// parameter, and for parameters that can't be sharded (sparse, made in inference mode, trainable
/// ones that are not floating point of 16 bits or more). The model's first use throws on all ranks
/// if the mesh of its root, or of a parameter without a cut, does not have all ranks of the world,
/// and unless the cuts of all ranks make whole parameters: it names the parameter and what is
/// missing, or is in two different parts. After an error build the model again.
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
// by any of them or by a forward, builds the program, opens communicators and allocates memory. It
// is collective and blocks, even if the function itself does not: all ranks must make it at the
// same point.
//
// After an exception in a forward or backward, other than NotFiniteError, all units are released. A
// failed backward also drops the step's gradients: begin again with the step's first micro-batch.
// After a failed forward, run that forward again. The next call that waits for the model (a pass,
// micro_batches with a new number, gather, edit_parameters, initialise, watch, findings, norms,
// save, load, load_elements, load_llama, BackgroundSave::begin, a capture or replay of a StepGraph)
// is then collective: ranks compare where they were. If all have given up
// the same pass, they continue: on CPU, ranks that had started fewer collectives start the rest; on
// CUDA all must have started the same number. Otherwise it throws on all ranks, and the model can't
// continue.

/// Sets the number of backward passes in a step (gradient accumulation; default 1). Their gradients
/// are added up: sharded ones are reduced after each pass, others after the last one only. Call it
/// after an update, on all ranks with the same number; if the numbers differ, the next pass throws.
/// A new number rebuilds the program, which blocks until the model's communication on this rank is
/// done. Sends nothing, unless the last pass has failed or RootOptions::symmetric makes it register
/// another arena (then it is collective). Throws if `count` is below 1, during a pass, if the step
/// has gradients that wait for their update, and after a StepGraph was captured.
///
/// A backward that reaches no parameter (autograd::grad with respect to an input, a model that is
/// frozen completely) does not count; all ranks must run it alike.
SHERD_API void micro_batches(ModuleRef model, int64_t count);
/// Runs a pass without data: joins all collectives of the other ranks' pass and contributes zero
/// gradients. One call replaces a forward and its backward; under NoGradGuard, a forward.
/// Collective; blocks, possibly until the other ranks have ended their forward. On a GPU,
/// communication may still be under way on return. Throws during a pass, if the step already has
/// all its backward passes, and NotFiniteError where a backward would. An error in the middle ends
/// the pass as an exception in a forward or backward does.
SHERD_API void idle_pass(ModuleRef model);
/// Blocks the host until all communication of the model on this rank is done; does not wait for the
/// current stream. After a pass has thrown it returns at once, because that communication may never
/// end; the next pass waits for it. Not collective. On CPU it throws if that communication has
/// failed; on CUDA the next operation does.
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
/// Makes the model compute with the changed main weights from the next pass on, drops the gradients
/// and ends the step. Call it on all ranks after a torch optimizer's step(); sherd::step and
/// AdamW::step include it. Sends nothing and does not block: the copy to the model weight runs on
/// the current stream, and the next gathers wait for it. (In the first step it waits for that
/// stream, to warn if no main weight has changed. If the step's backward ran an older program than
/// the newest, it changes to that one, which waits for the model's communication on this rank.) Not
/// collective. Throws, and changes nothing,
/// during a pass, in the middle of a step, and with Loss::per_token if the gradients were not
/// divided by tokens (use sherd::step).
SHERD_API void publish(ModuleRef model);

/// Options of sherd::step, AdamW::step and gradient_norm.
struct StepOptions {
  /// Tokens that this rank trained on in this step. Required with Loss::per_token, an error with
  /// any other loss.
  std::optional<int64_t> tokens{};
};
/// Updates the weights: calls optimizer.step() and publish(). With Loss::per_token it first divides
/// the gradients by the tokens of all ranks, which waits for the device; otherwise a GPU's work is
/// only enqueued, on the current stream. Does not clip. Collective; on CPU it blocks.
///
/// Throws, and changes nothing, if the optimizer holds module parameters or none of
/// sherd::parameters(model), during a pass, if backward passes are missing, for tokens that are
/// missing, unexpected, negative or 0 on all ranks, and with Loss::per_token while a StepGraph is
/// captured (use AdamW). If optimizer.step() throws, what it has changed is not
/// published.
SHERD_API void step(
    ModuleRef model, torch::optim::Optimizer& optimizer, const StepOptions& options = {});

/// Returns the L2 norm of the step's gradient over all parameters and ranks. Each element of the
/// whole parameters counts once, however many ranks hold it. Call it after the step's last backward
/// and before the update, with tokens as for step(). Changes nothing. Collective; blocks, and waits
/// for the device once for each parameter. Throws during a pass, if backward passes are missing,
/// and for tokens that are missing, unexpected, negative or 0 on all ranks. With AdamW use
/// AdamW::gradient_norm after the step: it sends nothing. The norms of single parameters are in
/// norms() (diagnostics.h).
SHERD_API double gradient_norm(ModuleRef model, const StepOptions& options = {});

// ---- looking inside -----------------------------------------------------------------------------

/// Returns the step as data, to print, count or compare. Before the first forward it is the program
/// for the order in which the units were sharded. The reference is valid until another program
/// replaces it, which happens in a pass that calls units in another order or under another
/// recompute, and in micro_batches(). Copy it to keep it. Not collective; does not block.
SHERD_API const Program& program(ModuleRef model);
/// Returns copies of all main weights (master weights), in full, by name, on every rank's device:
/// takes the memory of the whole model. Parameters that are cut are joined from the parts of all
/// ranks. Ignored parameters and buffers are not included.
/// Collective; blocks. Throws during a pass, and if parameters have no values.
SHERD_API std::vector<std::pair<std::string, at::Tensor>> full_parameters(ModuleRef model);
/// Returns the shape of the whole that a module's parameter is, or is a part of
/// (ParameterRule::cut). Not collective; does not block.
SHERD_API std::vector<int64_t> whole_shape(const at::Tensor& parameter);
/// Runs `edit`, without recording gradients, while the unit's parameters have the values of their
/// main weights (master weights), in full and in the main weights' dtype, then stores what it wrote
/// in main and model weights; optimizer state does not change. Parameters of units inside this one
/// are not included. `edit` must write the same on all ranks, which is not checked (where a
/// parameter is cut: on all that have the same part, which is all that is there); if it throws,
/// this rank's weights do not change. Takes memory for the unit's full parameters meanwhile.
/// Collective; blocks. Throws if the module is not a unit, during a pass, if the step has gradients
/// that wait for their update, and if parameters have no values.
///
///   sherd::edit_parameters(layer, [&] { layer->up->weight.mul_(0.5); });
SHERD_API void edit_parameters(ModuleRef unit, const std::function<void()>& edit);

/// Gathers (unshards) the parameters of one unit in full, outside its calls, into memory of their
/// own: they can be read, in the compute dtype, until release(), the next pass or the next update.
/// Do not write to them; use edit_parameters(). Units inside this one are not included. Units that
/// are kept gathered are released, and gathered again in the next forward. Collective; blocks until
/// the values are there. No effect if they are gathered already. Throws if the module is not a
/// unit, during a pass, and if parameters of the model have no values.
SHERD_API void gather(ModuleRef unit);
/// Releases (reshards) what gather() gathered and frees its memory; no effect otherwise. Not
/// collective; does not block. Throws if the module is not a unit.
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
