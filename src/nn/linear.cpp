// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/linear.h"

#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "nn/fp8/functions.h"
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias.has_value();
    if (input.is_meta()) {  // autocasting does not know it
      const auto dtype = product_dtype(input);
      return at::linear(
          input.to(dtype), weight.to(dtype), bias ? std::optional(bias->to(dtype)) : bias);
    }
    return at::linear(input, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[1];
    const auto& gradient = gradients[0];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor(), at::Tensor()};
    // Under autocast the product was made in the output's dtype; so are its gradients.
    const auto dtype = gradient.scalar_type();
    const auto input = saved[0].to(dtype);
    const auto flat_gradient = gradient.reshape({-1, gradient.size(-1)});
    at::Tensor input_gradient;
    at::Tensor weight_gradient;
    at::Tensor bias_gradient;
    if (context->needs_input_grad(0)) input_gradient = gradient.matmul(weight.to(dtype));
    if (context->needs_input_grad(1)) {
      weight_gradient =
          sherd::weight_gradient(weight, flat_gradient, input.reshape({-1, input.size(-1)}));
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) {
      bias_gradient = flat_gradient.sum(0);
    }
    return {input_gradient, weight_gradient, bias_gradient};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (fp8_weight(weight)) return fp8_linear(input, weight, bias);
  return LinearFunction::apply(
      input, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  return linear(input, weight, bias);
}

}  // namespace sherd
