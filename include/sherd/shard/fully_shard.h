// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/program.h"
#include "sherd/shard/options.h"

namespace torch::optim {
class Optimizer;
}

namespace sherd {

/// Makes a module a unit: its parameters, less those of units inside it, are gathered just before
/// it computes and released just after, and their gradients are reduced. After construction, inner
/// modules first, the whole model last: that one is the root. Collective: all ranks shard the same
/// modules in the same order. Must be called through its holder (SHERD_MODULE) or sherd::call.
///
/// A parameter that two units use belongs to the nearest unit around both. All ranks get the values
/// that the first rank has of parameters and buffers; buffers stay whole.
SHERD_API void fully_shard(
    const std::shared_ptr<torch::nn::Module>& module, const ShardOptions& options = {});

/// A holder of any kind.
template <class Contained>
void fully_shard(
    const torch::nn::ModuleHolder<Contained>& module, const ShardOptions& options = {}) {
  fully_shard(std::shared_ptr<torch::nn::Module>(module.ptr()), options);
}

// ---- the step; `model` is a root
// -----------------------------------------------------------------

/// How many backwards make a step; 1 unless said. A backward that brings a gradient to no
/// parameter (autograd::grad with respect to an input, a model that is frozen whole) does not
/// count; all ranks run it alike.
SHERD_API void micro_batches(const torch::nn::Module& model, int64_t count);
/// The pass of a rank that has no data for it: takes part in every collective, with zero gradients.
/// Counts as a forward and backward, or under NoGradGuard as a forward.
SHERD_API void idle_pass(const torch::nn::Module& model);
/// Blocks until all communication is done.
SHERD_API void finish(const torch::nn::Module& model);

/// The tensors for an optimizer: of each trainable parameter, this rank's elements of the main
/// weight, flat. Parameters that this rank has no elements of are left out, so ranks may get
/// different numbers of tensors, or none. They have gradients from the end of the step's last
/// backward to publish(), except those of parameters that are frozen by then.
SHERD_API std::vector<at::Tensor> parameters(const torch::nn::Module& model);
/// The same with the parameters' names, on all ranks alike: an empty tensor where this rank has no
/// elements.
SHERD_API std::vector<std::pair<std::string, at::Tensor>> named_parameters(
    const torch::nn::Module& model);
/// After the optimizer's step: the model computes with the new weights from the next pass on.
SHERD_API void publish(const torch::nn::Module& model);

struct StepOptions {
  /// This rank's tokens in this step; needed for, and only for, Loss::per_token.
  std::optional<int64_t> tokens{};
};
/// Update and publish: divides by all ranks' tokens where the loss is per token, lets the optimizer
/// step, and publishes. The optimizer must be built over sherd::parameters(model): another one is
/// refused.
SHERD_API void step(
    const torch::nn::Module& model,
    torch::optim::Optimizer& optimizer,
    const StepOptions& options = {});

/// The norm of the step's gradient over all parameters and ranks, each element counted once: those
/// of replicas once, those of a mesh with an axis `ep` (experts) on each of its ranks. Tokens as
/// for step(). Collective; blocks.
SHERD_API double gradient_norm(const torch::nn::Module& model, const StepOptions& options = {});

// ---- looking inside
// ------------------------------------------------------------------------------

/// The step as data: print it, count it, compare it. Builds it if no pass has. Lives until a
/// program takes its place: when another order or number of micro-batches is found.
SHERD_API const Program& program(const torch::nn::Module& model);
/// Bytes of all weights, gradients and slots that Sherd holds for the model on this rank.
SHERD_API int64_t allocated_bytes(const torch::nn::Module& model);
/// All main weights, whole, by name. Collective; blocks; as large as the model.
SHERD_API std::vector<std::pair<std::string, at::Tensor>> full_parameters(
    const torch::nn::Module& model);
/// Runs `edit` while the parameters of one unit are whole and may be written (the same on all
/// ranks), and keeps what it wrote. Between passes only. Collective; blocks.
SHERD_API void edit_parameters(torch::nn::Module& unit, const std::function<void()>& edit);

/// For a function that writes a parameter's gradient itself, in the backward: where to, in the
/// parameter's shape, and whether it is the first to write. It must write, and return no gradient.
struct GradientTarget {
  at::Tensor buffer;
  bool overwrite = true;
};
/// Nothing where the parameter is no unit's, or its unit is not in a backward.
SHERD_API std::optional<GradientTarget> gradient_target(const at::Tensor& parameter);

#define SHERD_FOR_HOLDERS(name, result)                                          \
  template <class Contained, class... Args>                                      \
  result name(const torch::nn::ModuleHolder<Contained>& model, Args&&... args) { \
    return name(*model, std::forward<Args>(args)...);                            \
  }
SHERD_FOR_HOLDERS(micro_batches, void)
SHERD_FOR_HOLDERS(idle_pass, void)
SHERD_FOR_HOLDERS(finish, void)
SHERD_FOR_HOLDERS(parameters, auto)
SHERD_FOR_HOLDERS(named_parameters, auto)
SHERD_FOR_HOLDERS(publish, void)
SHERD_FOR_HOLDERS(program, const Program&)
SHERD_FOR_HOLDERS(allocated_bytes, int64_t)
SHERD_FOR_HOLDERS(full_parameters, auto)
#undef SHERD_FOR_HOLDERS
template <class Contained>
void step(
    const torch::nn::ModuleHolder<Contained>& model,
    torch::optim::Optimizer& optimizer,
    const StepOptions& options = {}) {
  step(static_cast<const torch::nn::Module&>(*model), optimizer, options);
}
template <class Contained>
double gradient_norm(
    const torch::nn::ModuleHolder<Contained>& model, const StepOptions& options = {}) {
  return gradient_norm(static_cast<const torch::nn::Module&>(*model), options);
}
template <class Contained>
void edit_parameters(torch::nn::ModuleHolder<Contained> unit, const std::function<void()>& edit) {
  edit_parameters(static_cast<torch::nn::Module&>(*unit), edit);
}

}  // namespace sherd
