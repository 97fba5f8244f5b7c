// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/recompute.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "device/random_state.h"
#include "nn/weight_gradient.h"
#include "shard/autocast_state.h"
#include "shard/region.h"
#include "shard/unit/parameter_node.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the forward leaves for the backward.
struct Recipe : torch::CustomClassHolder {
  TensorFunction function;
  std::shared_ptr<Region> region = std::make_shared<Region>();
  RandomState random;
  AutocastState autocast;
};

/// While it lives, random numbers and autocasting are those of the forward.
class SameAgain {
 public:
  explicit SameAgain(const Recipe& recipe)
      : before_(RandomState::now()), autocast_(autocast_now()) {
    recipe.random.restore();
    restore(recipe.autocast);
  }
  ~SameAgain() {
    before_.restore();
    restore(autocast_);
  }
  SameAgain(const SameAgain&) = delete;
  SameAgain& operator=(const SameAgain&) = delete;

 private:
  RandomState before_;
  AutocastState autocast_;
};

/// Whether autograd was asked for some gradients only: by autograd::grad, or by a backward with
/// `inputs`. Those of parameters can't be among them, because the outer graph does not know which
/// parameters the function uses.
bool is_partial_backward() {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (!wanted || wanted->empty()) return false;
  for (const auto& [node, info] : *wanted) {
    TORCH_CHECK_VALUE(
        !info.needed_ || !dynamic_cast<const ParameterNode*>(node),
        "[nn] a backward with `inputs` that names parameters goes through recompute, where "
        "parameters are not seen: call backward without `inputs`, or freeze the others");
  }
  return true;
}

struct Recompute : torch::autograd::Function<Recompute> {
  // The first input is an empty leaf (see leaf_for): with it the outputs have a backward even where
  // no input needs a gradient (tokens into an embedding).
  static variable_list forward(
      AutogradContext* context, const c10::intrusive_ptr<Recipe>& recipe, at::TensorList given) {
    const variable_list inputs(given.begin() + 1, given.end());
    recipe->random = RandomState::now();
    recipe->autocast = autocast_now();
    context->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    context->save_for_backward(inputs);
    const RegionScope scope(recipe->region, RegionScope::Mode::record);
    return recipe->function(inputs);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative("recompute");
    const bool partial = is_partial_backward();
    const auto recipe =
        c10::static_intrusive_pointer_cast<Recipe>(context->saved_data["recipe"].toCapsule());
    variable_list inputs;
    for (const auto& saved : context->get_saved_variables()) {
      inputs.push_back(saved.defined() ? saved.detach() : saved);
      if (saved.defined()) inputs.back().set_requires_grad(saved.requires_grad());
    }
    variable_list outputs;
    {
      const SameAgain same(*recipe);
      const c10::AutoGradMode grad(true);
      const RegionScope scope(recipe->region, RegionScope::Mode::replay);
      outputs = recipe->function(inputs);
    }
    variable_list roots;
    variable_list seeds;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || !gradients[i].defined()) continue;
      roots.push_back(outputs[i]);
      seeds.push_back(gradients[i]);
    }
    variable_list result{at::Tensor(), at::Tensor()};  // of the recipe and the first input
    for (auto& gradient : input_gradients(roots, seeds, inputs, partial)) {
      result.push_back(std::move(gradient));
    }
    return result;
  }

  /// A partial backward brings gradients to the inputs alone.
  static variable_list input_gradients(
      const variable_list& roots,
      const variable_list& seeds,
      const variable_list& inputs,
      bool partial) {
    variable_list result(inputs.size());
    if (roots.empty()) return result;
    if (!partial) {
      torch::autograd::backward(roots, seeds);
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].defined()) result[i] = inputs[i].grad();
      }
      return result;
    }
    variable_list wanted;
    std::vector<size_t> numbers;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
      wanted.push_back(inputs[i]);
      numbers.push_back(i);
    }
    if (wanted.empty()) return result;
    const auto found = torch::autograd::grad(
        roots, wanted, seeds, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
        /*allow_unused=*/true);
    for (size_t i = 0; i < found.size(); ++i) result[numbers[i]] = found[i];
    return result;
  }
};

/// Returns an empty leaf on the inputs' GPU, or on the CPU if no input is on a GPU. At the end of a
/// backward, autograd makes the caller's stream wait for the streams of the graph's leaves and runs
/// final callbacks on it. For a graph without a leaf on the GPU it does neither.
at::Tensor leaf_for(const variable_list& inputs) {
  const auto on_gpu = std::find_if(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
    return input.defined() && input.is_cuda();
  });
  const auto device = on_gpu == inputs.end() ? c10::Device(c10::kCPU) : on_gpu->device();
  return at::empty({0}, at::TensorOptions().device(device)).set_requires_grad(true);
}

}  // namespace

bool recomputing() {
  const auto& regions = active_regions();
  return !regions.empty() && regions.back().mode == RegionScope::Mode::replay;
}

std::vector<at::Tensor> recompute_all(
    const TensorFunction& function, const std::vector<at::Tensor>& inputs) {
  if (!c10::GradMode::is_enabled()) return function(inputs);
  const auto recipe = c10::make_intrusive<Recipe>();
  recipe->function = function;
  variable_list all{leaf_for(inputs)};
  all.insert(all.end(), inputs.begin(), inputs.end());
  return Recompute::apply(recipe, at::TensorList(all));
}

}  // namespace sherd
