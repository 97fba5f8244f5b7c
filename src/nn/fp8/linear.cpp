// SPDX-License-Identifier: Apache-2.0
// Shapes: T rows, D dim, F width of the result.
#include <torch/csrc/autograd/custom_function.h>

#include "nn/fp8/functions.h"
#include "nn/fp8/normed_input.h"
#include "nn/rows.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Fp8Weight weight_in_fp8(const at::Tensor& parameter) {
  auto weight = fp8_weight(parameter);
  TORCH_INTERNAL_ASSERT(weight);
  return *std::move(weight);
}

std::vector<int64_t> with_last(const at::Tensor& x, int64_t size) {
  auto sizes = x.sizes().vec();
  sizes.back() = size;
  return sizes;
}

struct Fp8LinearFunction : torch::autograd::Function<Fp8LinearFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& parameter,
      const std::optional<at::Tensor>& bias) {
    const auto weight = weight_in_fp8(parameter);
    const auto x_TD = rows_of(input);
    const auto encoded = fp8_input(weight, x_TD);
    const bool keeps_scales = has_row_scales(weight.recipe);
    context->save_for_backward({x_TD, parameter, keeps_scales ? encoded.scales : at::Tensor()});
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["shape"] = input.sizes().vec();
    auto result = fp8_product(weight, encoded);
    if (bias) result.add_(*bias);
    return result.view(with_last(input, parameter.size(0)));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("linear");
    variable_list result(3);
    if (!gradients[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    const auto& parameter = saved[1];
    const auto weight = weight_in_fp8(parameter);
    const auto gradient_TF = rows_of(gradients[0]);
    const auto gradient = fp8_gradient(weight, gradient_TF, saved[2]);
    if (context->needs_input_grad(0)) {
      result[0] = fp8_input_gradient(weight, gradient.encoded)
                      .view(context->saved_data["shape"].toIntVector())
                      .to(saved[0].scalar_type());
    }
    if (context->needs_input_grad(1)) {
      result[1] = fp8_weight_gradient(parameter, weight, gradient, saved[0]);
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) {
      result[2] = gradient_TF.sum(0);
    }
    return result;
  }
};

struct Fp8NormLinearFunction : torch::autograd::Function<Fp8NormLinearFunction> {
  // A residual comes after what always is a tensor, as in NormLinearFunction.
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& norm_weight,
      const at::Tensor& parameter,
      const std::optional<at::Tensor>& residual,
      double epsilon,
      const std::optional<Exchange>& ranks) {
    const auto weight = weight_in_fp8(parameter);
    const SharedRows shared(ranks);
    shared.keep(*context);
    const auto input = NormedInput::make(
        weight, rows_of(x), residual ? rows_of(*residual) : at::Tensor(), norm_weight, epsilon);
    const auto encoded = gather_encoded(shared, input.encoded, x.sizes().vec());
    context->set_materialize_grads(false);
    context->save_for_backward(
        {input.rows.sum, norm_weight, parameter, input.rows.scale,
         has_row_scales(weight.recipe) ? encoded.scales : at::Tensor()});
    context->saved_data["shape"] = x.sizes().vec();
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["residual"] = residual.has_value();
    auto sizes = shared.gathered_sizes(x);
    sizes.back() = parameter.size(0);
    return {input.rows.sum.view(x.sizes()), fp8_product(weight, encoded).view(sizes)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("norm_linear");
    const bool adds = context->saved_data["residual"].toBool();
    const auto saved = context->get_saved_variables();
    const auto& [sum, norm_weight, parameter] = std::tie(saved[0], saved[1], saved[2]);
    const auto weight = weight_in_fp8(parameter);
    const SharedRows shared(*context);
    const auto shape = context->saved_data["shape"].toIntVector();
    const auto product_gradient = shared.present(
        gradients[1], shared.gathered_sizes(shape), parameter.size(0),
        sum.options().dtype(weight.compute));
    variable_list result(6);
    result[0] = gradients[0];
    if (product_gradient.defined()) {
      const double epsilon = context->saved_data["epsilon"].toDouble();
      const NormedRows rows{sum, {}, saved[3]};
      const auto gradient = fp8_gradient(weight, rows_of(product_gradient), saved[4]);
      if (context->needs_input_grad(2)) {
        result[2] = normed_weight_gradient(
            parameter, weight, gradient, gather_normed(shared, rows, shape), norm_weight, epsilon);
      }
      const auto d_gathered_y =
          fp8_input_gradient(weight, gradient.encoded).view(shared.gathered_sizes(shape));
      const auto y_gradient = rows_of(shared.scatter_sum(d_gathered_y)).to(sum.scalar_type());
      const auto more = gradients[0].defined() ? rows_of(gradients[0]) : gradients[0];
      result[0] = norm_rows_gradient(
                      rows, norm_weight, y_gradient, more, context->needs_input_grad(1), result[1])
                      .view(shape);
    }
    if (adds) result[3] = result[0];
    return result;
  }
};

}  // namespace

at::Tensor fp8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return Fp8LinearFunction::apply(
      input, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> fp8_norm_linear(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& weight) {
  const auto other = residual.defined() ? std::optional<at::Tensor>(residual) : std::nullopt;
  auto both = Fp8NormLinearFunction::apply(x, norm.weight, weight, other, norm.epsilon, norm.ranks);
  return {std::move(both[0]), std::move(both[1])};
}

}  // namespace sherd
