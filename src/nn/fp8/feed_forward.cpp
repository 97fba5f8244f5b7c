// SPDX-License-Identifier: Apache-2.0
// Shapes: T rows, D dim, F width inside.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/nn/swiglu.h"
#include "nn/fp8/functions.h"
#include "nn/fp8/normed_input.h"
#include "nn/rows.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The SwiGLU of gate and up as the input of the product with down.
struct Activation {
  at::Tensor wide;  ///< [T, F]; only if the recipe can't encode it at once
  Fp8Matrix encoded;

  Activation(const Fp8Weight& down, const at::Tensor& gate_up_TF) {
    if (has_row_scales(down.recipe)) {
      encoded = encode_swiglu(gate_up_TF);
      return;
    }
    wide = at::empty({gate_up_TF.size(0), gate_up_TF.size(1) / 2}, gate_up_TF.options());
    swiglu_forward(gate_up_TF, wide);
    encoded = fp8_input(down, wide);
  }
};

/// Both weights, and what the functions keep of them.
struct Weights {
  Fp8Weight gate_up;
  Fp8Weight down;
  Weights(const at::Tensor& gate_up_parameter, const at::Tensor& down_parameter)
      : gate_up(*fp8_weight(gate_up_parameter)), down(*fp8_weight(down_parameter)) {}
};

struct Fp8FeedForwardFunction : torch::autograd::Function<Fp8FeedForwardFunction> {
  enum Saved : size_t {
    kSum,
    kNorm,
    kGateUpWeight,
    kDownWeight,
    kGateUp,
    kScale,
    kInput,
    kActivation
  };

  // A norm and a residual come last: inputs that are none are not counted by needs_input_grad.
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& gate_up_parameter,
      const at::Tensor& down_parameter,
      const std::optional<at::Tensor>& norm_weight,
      const std::optional<at::Tensor>& residual,
      double epsilon,
      const FeedForwardOptions& options,
      const std::optional<Exchange>& ranks) {
    const Weights weights(gate_up_parameter, down_parameter);
    const SharedRows shared(ranks);
    shared.keep(*context);
    const auto norm = norm_weight.value_or(at::Tensor());
    auto input = NormedInput::make(
        weights.gate_up, rows_of(x), residual ? rows_of(*residual) : at::Tensor(), norm, epsilon);
    input.encoded = gather_encoded(shared, input.encoded, x.sizes().vec());
    const auto gate_up_TF = fp8_product(weights.gate_up, input.encoded);
    input.encoded.values.reset();
    const bool row_scales = has_row_scales(weights.gate_up.recipe);
    at::Tensor result, activation_scales;
    auto sizes = x.sizes().vec();
    sizes.back() = down_parameter.size(0);
    if (options.skips_result) {
      result = at::empty(sizes, gate_up_TF.options());
    }
    if (!options.skips_result || row_scales) {
      const Activation activation(weights.down, gate_up_TF);
      if (row_scales) activation_scales = activation.encoded.scales;
      if (!options.skips_result) {
        const auto sum = options.adds_sum ? input.rows.sum.to(weights.down.compute) : at::Tensor();
        const bool fused = !shared.are_shared();
        result = fp8_product(weights.down, activation.encoded, fused ? sum : at::Tensor());
        result = shared.scatter_sum(result.view(shared.gathered_sizes(sizes)));
        if (sum.defined() && !fused) result = sum.view(sizes) + result;
      }
    }
    context->set_materialize_grads(false);
    context->save_for_backward(
        {input.rows.sum, norm, gate_up_parameter, down_parameter,
         options.recompute_gate_up ? at::Tensor() : gate_up_TF, input.rows.scale,
         row_scales ? input.encoded.scales : at::Tensor(), activation_scales});
    context->saved_data["shape"] = x.sizes().vec();
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["norm"] = norm_weight.has_value();
    context->saved_data["residual"] = residual.has_value();
    context->saved_data["adds_sum"] = options.adds_sum;
    context->saved_data["overwrites"] = options.overwrites || options.recompute_gate_up;
    return {input.rows.sum.view(x.sizes()), result};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("feed_forward");
    const bool has_norm = context->saved_data["norm"].toBool();
    const bool has_residual = context->saved_data["residual"].toBool();
    const bool adds_sum = context->saved_data["adds_sum"].toBool();
    variable_list result(8);
    auto sum_gradient = gradients[0];
    if (adds_sum && gradients[1].defined()) {
      sum_gradient = sum_gradient.defined() ? sum_gradient + gradients[1] : gradients[1];
    }
    result[0] = sum_gradient;
    const SharedRows shared(*context);
    const auto saved = context->get_saved_variables();
    const auto gradient = shared.present(
        gradients[1], context->saved_data["shape"].toIntVector(), saved[kDownWeight].size(0),
        saved[kSum].options().dtype(fp8_weight(saved[kDownWeight])->compute));
    if (gradient.defined()) {
      result[0] = back(context, shared, gradient, sum_gradient, result, has_norm);
    }
    if (has_residual) result[4] = result[0];
    return result;
  }

 private:
  /// Returns the gradient of the sum; those of the weights go to their places.
  static at::Tensor back(
      AutogradContext* context,
      const SharedRows& shared,
      const at::Tensor& gradient,
      const at::Tensor& sum_gradient,
      variable_list& result,
      bool has_norm) {
    const auto saved = context->get_saved_variables();
    const auto shape = context->saved_data["shape"].toIntVector();
    const auto gradient_TD = rows_of(shared.gather(gradient));
    const Weights weights(saved[kGateUpWeight], saved[kDownWeight]);
    const double epsilon = context->saved_data["epsilon"].toDouble();
    const NormedRows rows{saved[kSum], {}, saved[kScale]};
    auto gate_up_TF = saved[kGateUp];
    if (!gate_up_TF.defined()) {
      const auto again = NormedInput::make(weights.gate_up, rows.sum, {}, saved[kNorm], epsilon);
      gate_up_TF = fp8_product(weights.gate_up, gather_encoded(shared, again.encoded, shape));
    }
    const auto gate_up = gate_up_gradient(context, saved, weights, gradient_TD, gate_up_TF, result);
    if (context->needs_input_grad(1)) {
      result[1] = normed_weight_gradient(
          saved[kGateUpWeight], weights.gate_up, gate_up, gather_normed(shared, rows, shape),
          saved[kNorm], epsilon);
    }
    const auto d_gathered_y =
        fp8_input_gradient(weights.gate_up, gate_up.encoded).view(shared.gathered_sizes(shape));
    const auto y_gradient = rows_of(shared.scatter_sum(d_gathered_y)).to(rows.sum.scalar_type());
    const auto more_TD = sum_gradient.defined() ? rows_of(sum_gradient) : sum_gradient;
    if (!has_norm) return (more_TD.defined() ? more_TD + y_gradient : y_gradient).view(shape);
    return norm_rows_gradient(
               rows, saved[kNorm], y_gradient, more_TD, context->needs_input_grad(3), result[3])
        .view(shape);
  }

  /// Goes back through down and the SwiGLU.
  static Fp8ProductGradient gate_up_gradient(
      AutogradContext* context,
      const variable_list& saved,
      const Weights& weights,
      const at::Tensor& gradient_TD,
      const at::Tensor& gate_up_TF,
      variable_list& result) {
    const auto gradient = fp8_gradient(weights.down, gradient_TD, saved[kActivation]);
    auto d_activation_TF = fp8_input_gradient(weights.down, gradient.encoded);
    const bool wants_weight = context->needs_input_grad(2);
    if (weights.down.recipe == Fp8::rows) {
      auto both =
          encode_swiglu_gradients(d_activation_TF, gate_up_TF, gradient.encoded, saved[kInput]);
      if (wants_weight) {
        result[2] = fp8_weight_gradient(
            saved[kDownWeight], weights.down, gradient.encoded.columns, both.activation);
      }
      return {{}, std::move(both.gate_up)};
    }
    const bool in_place = context->saved_data["overwrites"].toBool();
    const auto d_gate_up_TF = in_place ? gate_up_TF : at::empty_like(gate_up_TF);
    // The activation takes the place of its own gradient.
    swiglu_backward(d_activation_TF, gate_up_TF, d_gate_up_TF, d_activation_TF);
    if (wants_weight) {
      result[2] = fp8_weight_gradient(saved[kDownWeight], weights.down, gradient, d_activation_TF);
    }
    d_activation_TF.reset();
    return fp8_gradient(weights.gate_up, d_gate_up_TF, saved[kInput]);
  }
};

}  // namespace

bool are_both_fp8(
    const char* operation, const at::Tensor& gate_up_weight, const at::Tensor& down_weight) {
  const auto gate_up = fp8_weight(gate_up_weight);
  const auto down = fp8_weight(down_weight);
  TORCH_CHECK_VALUE(
      gate_up.has_value() == down.has_value() && (!gate_up || gate_up->recipe == down->recipe),
      "[nn] ", operation,
      " has one weight in fp8 and another that is not, or in another recipe: use one recipe for "
      "both (a ParameterRule for gate_up and down alike; precision.keep in a training file)");
  return gate_up.has_value();
}

std::tuple<at::Tensor, at::Tensor> fp8_feed_forward(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    const FeedForwardOptions& options) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  auto both = Fp8FeedForwardFunction::apply(
      x, gate_up_weight, down_weight, given(norm.weight), given(residual), norm.epsilon, options,
      norm.ranks);
  return {std::move(both[0]), std::move(both[1])};
}

}  // namespace sherd
