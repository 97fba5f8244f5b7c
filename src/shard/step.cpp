// SPDX-License-Identifier: Apache-2.0
// What a training loop calls.
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <unordered_set>

#include "shard/fp8_weight.h"
#include "shard/outside_inference.h"
#include "shard/registry.h"
#include "shard/replace_data.h"
#include "shard/runtime/runtime.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/initialise.h"

namespace sherd {
namespace {

/// Sums a number over all ranks. Blocks. Collective.
double sum_over(const World& world, double value) {
  auto sum = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world.device()));
  sum.fill_(value);
  world.communicator().all_reduce(sum, Reduction::sum()).synchronize();
  return sum.item<double>();
}

}  // namespace

void micro_batches(ModuleRef model, int64_t count) {
  Runtime::of_model(*model, "micro_batches")->set_micro_batches(count);
}

void idle_pass(ModuleRef model) {
  Runtime::of_model(*model, "idle_pass")->idle_pass();
}

void finish(ModuleRef model) {
  Runtime::of_model(*model, "finish")->finish();
}

std::vector<std::pair<std::string, at::Tensor>> named_parameters(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "parameters");
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& shard : runtime->shards()) {
    if (shard.trainable) result.emplace_back(shard.name, shard.main);
  }
  return result;
}

std::vector<at::Tensor> parameters(ModuleRef model) {
  std::vector<at::Tensor> result;
  for (auto& [name, tensor] : named_parameters(model)) {
    if (tensor.numel() > 0) result.push_back(std::move(tensor));
  }
  return result;
}

void publish(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "publish");
  runtime->warn_if_unchanged();
  runtime->publish();
}

namespace {

void check_not_negative(const Runtime& runtime, std::optional<int64_t> tokens) {
  TORCH_CHECK_VALUE(
      !tokens || *tokens >= 0, "[shard] the step of '", runtime.root().name(), "' has ", *tokens,
      " tokens on this rank: give 0 or more");
}

/// Torch's optimizers skip tensors without a gradient: over the wrong ones they would do nothing,
/// step after step.
void check_updates(const Runtime& runtime, torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> mine;
  for (const auto& shard : runtime.shards()) {
    if (shard.trainable && shard.main.numel() > 0) mine.insert(shard.main.unsafeGetTensorImpl());
  }
  bool updates = mine.empty();
  for (const auto& param_group : optimizer.param_groups()) {
    for (const auto& parameter : param_group.params()) {
      const auto owner = find_owner(parameter);
      TORCH_CHECK_VALUE(
          !owner.unit, "[shard] the optimizer was built over model->parameters(): '",
          owner.unit ? runtime.units().full_name(
                           *owner.unit, owner.unit->groups()[owner.group]->name(owner.member))
                     : "",
          "' is the module's parameter, which has no gradient of its own and would never change; "
          "build the optimizer over sherd::parameters(model)");
      updates = updates || mine.contains(parameter.unsafeGetTensorImpl());
    }
  }
  TORCH_CHECK_VALUE(
      updates, "[shard] the optimizer updates none of the main weights of '", runtime.root().name(),
      "': build it over sherd::parameters(model)");
}

}  // namespace

void step(ModuleRef model, torch::optim::Optimizer& optimizer, const StepOptions& options) {
  const auto runtime = Runtime::of_model(*model, "step");
  // This rank's mistakes first: after the check below, the others would wait for it.
  check_updates(*runtime, optimizer);
  const bool per_token = runtime->root().root_options().loss == Loss::per_token;
  TORCH_CHECK(
      !per_token || !runtime->parts().graph.capturing, "[shard.graph] the loss of '",
      runtime->root().name(),
      "' is per token, and torch's optimizers can't divide by a number that the graph reads: use "
      "sherd::AdamW and its set_tokens");
  TORCH_CHECK_VALUE(
      per_token == options.tokens.has_value(), "[shard] the loss of '", runtime->root().name(),
      per_token ? "' is per token: pass this rank's tokens, sherd::step(model, optimizer, {.tokens "
                  "= …})"
                : "' is not per token, but tokens are given: set RootOptions::loss = "
                  "sherd::Loss::per_token, or give none");
  check_not_negative(*runtime, options.tokens);
  runtime->check_complete("optimizer.step()");
  if (options.tokens) {
    runtime->divide_by_tokens(sum_over(runtime->world(), static_cast<double>(*options.tokens)));
  }
  optimizer.step();
  runtime->publish();
}

double gradient_norm(ModuleRef model, const StepOptions& options) {
  const auto runtime = Runtime::of_model(*model, "gradient_norm");
  const bool per_token = runtime->root().root_options().loss == Loss::per_token;
  TORCH_CHECK_VALUE(
      per_token == options.tokens.has_value(), "[shard] gradient_norm of '", runtime->root().name(),
      "', whose loss is ",
      per_token ? "per token: pass this rank's tokens, {.tokens = …}"
                : "not per token: it takes no tokens");
  check_not_negative(*runtime, options.tokens);
  runtime->check_complete("gradient_norm");
  const c10::NoGradGuard no_grad;
  double mine = 0;
  for (const auto& shard : runtime->shards()) {
    if (!shard.trainable || !shard.counted) continue;
    const auto norm = at::linalg_vector_norm(shard.gradient, 2, {}, false, at::kDouble);
    mine += norm.square().item<double>();
  }
  const double norm = std::sqrt(sum_over(runtime->world(), mine));
  if (!per_token) return norm;
  const double tokens = sum_over(runtime->world(), static_cast<double>(*options.tokens));
  TORCH_CHECK_VALUE(
      tokens > 0, "[shard] gradient_norm of '", runtime->root().name(),
      "': the step has no tokens on any rank");
  return norm / tokens;
}

const Program& program(ModuleRef model) {
  return Runtime::of_model(*model, "program")->program();
}

std::vector<std::pair<std::string, at::Tensor>> full_parameters(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "full_parameters");
  runtime->check_between_passes("full_parameters");
  runtime->units().check_initialised();
  runtime->finish();
  const c10::NoGradGuard no_grad;
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto* unit : runtime->units()) {
    for (const auto& group : unit->groups()) {
      const auto full = group->storage().gather_main_weight();
      for (size_t member = 0; member < group->size(); ++member) {
        const auto& shard = runtime->shards()[result.size()];
        result.emplace_back(
            shard.name, shard.cut ? join_parts(shard, runtime->world())
                                  : group->layout().view(full, member).clone());
      }
    }
  }
  return result;
}

std::vector<int64_t> whole_shape(const at::Tensor& parameter) {
  const auto owner = find_owner(parameter);
  if (!owner.unit) return parameter.sizes().vec();
  return owner.unit->groups()[owner.group]->layout().whole_shape(owner.member);
}

namespace {

/// The unit of a module, at rest: what `function` may edit.
auto unit_to_edit(const torch::nn::Module& module, const char* function) {
  const auto unit = find_unit(&module);
  TORCH_CHECK_VALUE(
      unit, "[shard] ", function, " is called with '", module.name(), "', which is not a unit");
  if (unit->runtime()) {
    unit->runtime()->wait_until_idle(function);
    TORCH_CHECK(
        unit->runtime()->state().backwards_done() == 0, "[shard] ", function, " of unit '",
        unit->name(),
        "' in the middle of a step: gradients of the old values are waiting for their update");
  }
  for (const auto& group : unit->groups()) {
    const auto name = group->storage().first_uninitialised();
    TORCH_CHECK(
        !name, "[shard] ", function, " of unit '", unit->name(), "': parameter '", *name,
        "' has no values: call sherd::initialise(model) first");
  }
  return unit;
}

}  // namespace

void edit_parameters(ModuleRef module, const std::function<void()>& edit) {
  const auto unit = unit_to_edit(*module, "edit_parameters");
  const c10::NoGradGuard no_grad;
  const auto parameters = unit->members().parameters();
  std::vector<at::Tensor> full;
  for (const auto& group : unit->groups()) full.push_back(group->storage().gather_main_weight());
  for (const auto& [parameter, group, index] : parameters) {
    replace_data(parameter, unit->groups()[group]->layout().view(full[group], index));
  }
  const auto restore = [&] {
    for (const auto& [parameter, group, index] : parameters) {
      replace_data(parameter, unit->groups()[group]->parameters().view(index));
    }
    unit->hide();
  };
  // Also after an exception: units that were gathered no longer are.
  const auto note_edit = [&] {
    if (unit->runtime()) unit->runtime()->note_edit();
  };
  try {
    edit();
  } catch (...) {
    restore();
    note_edit();
    throw;
  }
  restore();
  for (size_t i = 0; i < full.size(); ++i) unit->groups()[i]->storage().set_main_weight(full[i]);
  note_edit();
}

void gather(ModuleRef module) {
  const auto unit = find_unit(module.get());
  TORCH_CHECK_VALUE(
      unit, "[shard] gather is called with '", module->name(), "', which is not a unit");
  const auto runtime = Runtime::of(*unit);
  runtime->wait_until_idle("gather");
  runtime->units().check_initialised();
  if (unit->activity().is_gathered_outside()) return;
  const OutsideInference normal;
  auto& parts = runtime->parts();
  // What the program keeps gathered is gathered anew in the next forward.
  for (auto* one : parts.units) {
    const auto& activity = one->activity();
    if (activity.is_gathered() && !activity.is_gathered_outside()) one->hide();
  }
  parts.state.note_released();
  parts.encode_stale_weights();
  const auto buffers = parts.executor.gather_now(*unit, parts.state.forward_flags(true).changed);
  std::vector<at::Tensor> shown;
  auto buffer = buffers.begin();
  for (const auto& group : unit->groups()) {
    shown.push_back(group->show_decoded(group->layout().needs_gather() ? *buffer++ : at::Tensor()));
  }
  unit->activity().set_gathered();
  unit->activity().set_gathered_outside(std::move(shown));
}

void release(ModuleRef module) {
  const auto unit = find_unit(module.get());
  TORCH_CHECK_VALUE(
      unit, "[shard] release is called with '", module->name(), "', which is not a unit");
  if (unit->activity().is_gathered_outside()) unit->hide();
}

std::optional<GradientTarget> gradient_target(const at::Tensor& parameter) {
  const auto owner = find_owner(parameter);
  if (!owner.unit) return std::nullopt;
  if (owner.unit->runtime()) owner.unit->runtime()->notice_failure();
  if (!owner.unit->activity().is_collecting() || !parameter.requires_grad()) return std::nullopt;
  if (owner.unit->runtime() && !owner.unit->runtime()->takes_all_gradients()) return std::nullopt;
  // A hook on the parameter has to see its gradient.
  if (!torch::autograd::impl::hooks(parameter).empty()) return std::nullopt;
  const auto target = owner.unit->groups()[owner.group]->inbox().take_target(owner.member);
  return GradientTarget{target.buffer, target.overwrite};
}

std::optional<Fp8Weight> fp8_weight(const at::Tensor& parameter) {
  const auto owner = find_owner(parameter);
  if (!owner.unit) return std::nullopt;
  const auto& group = *owner.unit->groups()[owner.group];
  if (!group.layout().is_fp8()) return std::nullopt;
  TORCH_CHECK(
      group.fp8().shown(), "[shard] the weight '", group.name(owner.member), "' of unit '",
      owner.unit->name(),
      "' is released: call the module through its holder (SHERD_MODULE) or sherd::call");
  return group.fp8().weight(owner.member);
}

}  // namespace sherd
