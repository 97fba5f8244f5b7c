// SPDX-License-Identifier: Apache-2.0
// Shapes: T rows, D dim, F width inside.
#include "sherd/nn/functional.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cast_copy.h"
#include "kernels/nn/swiglu.h"
#include "nn/fp8/functions.h"
#include "nn/normed_rows.h"
#include "nn/rows.h"
#include "nn/shared_rows.h"
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A residual comes last: an input that is none is not counted by needs_input_grad.

/// What reaches the sum by other ways goes on, if nothing comes through the product.
variable_list passed_on(
    const at::Tensor& sum_gradient, bool has_residual, size_t residual, size_t inputs) {
  variable_list result(inputs);
  result[0] = sum_gradient;
  if (has_residual) result[residual] = sum_gradient;
  return result;
}

c10::ScalarType product_dtype_of(const AutogradContext& context) {
  return static_cast<c10::ScalarType>(context.saved_data.at("product_dtype").toInt());
}

struct NormLinearFunction : torch::autograd::Function<NormLinearFunction> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& norm_weight,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& residual,
      double epsilon,
      const std::optional<Exchange>& ranks) {
    const auto rows = norm_rows(x, residual.value_or(at::Tensor()), norm_weight, epsilon);
    const auto dtype = product_dtype(x);
    const SharedRows shared(ranks);
    auto sizes = shared.gathered_sizes(x);
    sizes.back() = weight.size(0);
    context->set_materialize_grads(false);
    context->save_for_backward({rows.sum, norm_weight, weight});
    context->saved_data["product_dtype"] = static_cast<int64_t>(dtype);
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["residual"] = residual.has_value();
    shared.keep(*context);
    const auto y = shared.gather(rows.y.to(dtype));
    return {rows.sum, at::mm(rows_of(y), weight.to(dtype).t()).view(sizes)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("norm_linear");
    const bool adds = context->saved_data["residual"].toBool();
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[2];
    const SharedRows shared(*context);
    // Under autocast the sum may be wider than the product.
    const auto dtype = product_dtype_of(*context);
    const auto gradient = shared.present(
        gradients[1], shared.gathered_sizes(saved[0]), weight.size(0),
        saved[0].options().dtype(dtype));
    if (!gradient.defined()) return passed_on(gradients[0], adds, 3, 6);
    const auto rows = norm_rows(saved[0], {}, saved[1], context->saved_data["epsilon"].toDouble());
    const auto gradient_TF = rows_of(gradient);
    variable_list result(6);
    if (context->needs_input_grad(2)) {
      const auto y = shared.gather(rows.y.to(dtype));
      result[2] = weight_gradient(weight, gradient_TF, rows_of(y));
    }
    const auto d_gathered_y =
        at::mm(gradient_TF, weight.to(dtype)).view(shared.gathered_sizes(saved[0]));
    const auto y_gradient = shared.scatter_sum(d_gathered_y).to(saved[0].scalar_type());
    result[0] = norm_rows_gradient(
        rows, saved[1], y_gradient, gradients[0], context->needs_input_grad(1), result[1]);
    if (adds) result[3] = result[0];
    return result;
  }
};

struct NormFeedForwardFunction : torch::autograd::Function<NormFeedForwardFunction> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& norm_weight,
      const at::Tensor& gate_up_weight,
      const at::Tensor& down_weight,
      const std::optional<at::Tensor>& residual,
      double epsilon,
      const FeedForwardOptions& options,
      const std::optional<Exchange>& ranks) {
    const auto dtype = product_dtype(x);
    const SharedRows shared(ranks);
    shared.keep(*context);
    auto rows = norm_rows(x, residual.value_or(at::Tensor()), norm_weight, epsilon);
    const auto gate_up_TF =
        at::mm(rows_of(shared.gather(rows.y.to(dtype))), gate_up_weight.to(dtype).t());
    rows.y.reset();
    context->set_materialize_grads(false);
    context->save_for_backward(
        {rows.sum, norm_weight, gate_up_weight, down_weight,
         options.recompute_gate_up ? at::Tensor() : gate_up_TF});
    context->saved_data["overwrites"] = options.overwrites;
    context->saved_data["adds_sum"] = options.adds_sum;
    context->saved_data["product_dtype"] = static_cast<int64_t>(dtype);
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["residual"] = residual.has_value();
    if (options.skips_result) return {rows.sum, at::empty(x.sizes(), gate_up_TF.options())};
    const auto activation_TF =
        at::empty({gate_up_TF.size(0), down_weight.size(1)}, gate_up_TF.options());
    swiglu_forward(gate_up_TF, activation_TF);
    auto result = shared.scatter_sum(
        at::mm(activation_TF, down_weight.to(dtype).t()).view(shared.gathered_sizes(x)));
    if (options.adds_sum) result = rows.sum + result;
    return {rows.sum, result};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("norm_feed_forward");
    const bool adds = context->saved_data["residual"].toBool();
    const auto saved = context->get_saved_variables();
    const SharedRows shared(*context);
    const auto gradient =
        shared.present(gradients[1], saved[0].sizes().vec(), saved[0].size(-1), saved[0].options());
    if (!gradient.defined()) return passed_on(gradients[0], adds, 4, 8);
    auto sum_gradient = gradients[0];
    if (context->saved_data["adds_sum"].toBool()) {
      sum_gradient = sum_gradient.defined() ? sum_gradient + gradient : gradient;
    }
    const auto& gate_up_weight = saved[2];
    const auto& down_weight = saved[3];
    // Under autocast the sum may be wider than the products.
    const auto dtype = product_dtype_of(*context);
    const auto gradient_TD = rows_of(shared.gather(gradient.to(dtype)));
    const auto narrow_gate_up = gate_up_weight.to(dtype);
    const bool recomputed = !saved[4].defined();
    NormedRows rows;
    at::Tensor y;
    const auto recompute_rows = [&] {
      rows = norm_rows(saved[0], {}, saved[1], context->saved_data["epsilon"].toDouble());
      y = shared.gather(rows.y.to(dtype));
    };
    if (recomputed) recompute_rows();
    const auto gate_up_TF = recomputed ? at::mm(rows_of(y), narrow_gate_up.t()) : saved[4];
    variable_list result(8);
    const bool in_place = recomputed || context->saved_data["overwrites"].toBool();
    const auto d_gate_up_TF = in_place ? gate_up_TF : at::empty_like(gate_up_TF);
    {
      // The activation takes the place of its own gradient.
      const auto place_TF = at::mm(gradient_TD, down_weight.to(dtype));
      swiglu_backward(place_TF, gate_up_TF, d_gate_up_TF, place_TF);
      if (context->needs_input_grad(3)) {
        result[3] = weight_gradient(down_weight, gradient_TD, place_TF);
      }
    }
    if (!recomputed) recompute_rows();
    if (context->needs_input_grad(2)) {
      result[2] = weight_gradient(gate_up_weight, d_gate_up_TF, rows_of(y));
    }
    y.reset();
    const auto d_gathered_y =
        at::mm(d_gate_up_TF, narrow_gate_up).view(shared.gathered_sizes(saved[0]));
    const auto y_gradient = shared.scatter_sum(d_gathered_y).to(saved[0].scalar_type());
    result[0] = norm_rows_gradient(
        rows, saved[1], y_gradient, sum_gradient, context->needs_input_grad(1), result[1]);
    if (adds) result[4] = result[0];
    return result;
  }
};

}  // namespace

std::tuple<at::Tensor, at::Tensor> norm_linear(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& weight) {
  const auto [mine, other] = norm_inputs("norm_linear", x, residual, norm);
  TORCH_CHECK_VALUE(
      weight.dim() == 2 && weight.size(1) == x.size(-1), "[nn] norm_linear of ", x.sizes(),
      " with a weight of ", weight.sizes(), ": they are [.., D] and [F, D]");
  if (fp8_weight(weight)) {
    return fp8_norm_linear(mine, other.value_or(at::Tensor()), norm, weight);
  }
  auto both = NormLinearFunction::apply(mine, norm.weight, weight, other, norm.epsilon, norm.ranks);
  return {std::move(both[0]), std::move(both[1])};
}

std::tuple<at::Tensor, at::Tensor> norm_feed_forward(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    const FeedForwardOptions& options) {
  const auto [mine, other] = norm_inputs("norm_feed_forward", x, residual, norm);
  TORCH_CHECK_VALUE(
      gate_up_weight.dim() == 2 && down_weight.dim() == 2 && gate_up_weight.size(1) == x.size(-1) &&
          down_weight.size(0) == x.size(-1) && gate_up_weight.size(0) == 2 * down_weight.size(1) &&
          down_weight.size(1) > 0,
      "[nn] norm_feed_forward of ", x.sizes(), " with weights of ", gate_up_weight.sizes(), " and ",
      down_weight.sizes(), ": they are [.., D], [2F, D] and [D, F]");
  if (are_both_fp8("norm_feed_forward", gate_up_weight, down_weight)) {
    return fp8_feed_forward(
        mine, other.value_or(at::Tensor()), norm, gate_up_weight, down_weight, options);
  }
  auto both = NormFeedForwardFunction::apply(
      mine, norm.weight, gate_up_weight, down_weight, other, norm.epsilon, options, norm.ranks);
  return {std::move(both[0]), std::move(both[1])};
}

}  // namespace sherd
