// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/recompute.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "shard/autocast_state.h"
#include "shard/random_state.h"
#include "shard/region.h"

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

struct Recompute : torch::autograd::Function<Recompute> {
  // The first input is a leaf of no use but one: with it the outputs have a backward even where no
  // input needs a gradient (tokens into an embedding).
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
    if (!roots.empty()) torch::autograd::backward(roots, seeds);
    variable_list result{at::Tensor(), at::Tensor()};  // of the recipe and the first input
    for (const auto& input : inputs) {
      result.push_back(input.defined() ? input.grad() : at::Tensor());
    }
    return result;
  }
};

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
  variable_list all{at::empty({0}).set_requires_grad(true)};
  all.insert(all.end(), inputs.begin(), inputs.end());
  return Recompute::apply(recipe, at::TensorList(all));
}

}  // namespace sherd
