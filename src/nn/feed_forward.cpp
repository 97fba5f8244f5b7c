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
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct FeedForwardFunction : torch::autograd::Function<FeedForwardFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& gate_up_weight,
      const at::Tensor& down_weight,
      bool recompute_gate_up) {
    const auto dtype = product_dtype(given);
    const auto x_TD = given.to(dtype).reshape({-1, given.size(-1)});
    const auto gate_up_TF = at::mm(x_TD, gate_up_weight.to(dtype).t());  // [T, 2F]
    const auto activation_TF = at::empty({x_TD.size(0), down_weight.size(1)}, x_TD.options());
    swiglu_forward(gate_up_TF, activation_TF);
    context->set_materialize_grads(false);
    context->save_for_backward(
        {x_TD, gate_up_weight, down_weight, recompute_gate_up ? at::Tensor() : gate_up_TF});
    context->saved_data["shape"] = given.sizes().vec();
    auto sizes = given.sizes().vec();
    sizes.back() = down_weight.size(0);
    return at::mm(activation_TF, down_weight.to(dtype).t()).view(sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("feed_forward");
    if (!gradients[0].defined()) return {{}, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    const auto& x_TD = saved[0];
    const auto& gate_up_weight = saved[1];
    const auto& down_weight = saved[2];
    const auto dtype = x_TD.scalar_type();
    const auto gradient_TD = gradients[0].reshape({-1, gradients[0].size(-1)});
    const auto narrow_gate_up = gate_up_weight.to(dtype);
    const bool recomputed = !saved[3].defined();
    const auto gate_up_TF = recomputed ? at::mm(x_TD, narrow_gate_up.t()) : saved[3];
    // The activation takes the place of its own gradient; gate and up take that of gate_up where it
    // is not the graph's.
    const auto place_TF = at::mm(gradient_TD, down_weight.to(dtype));
    const auto d_gate_up_TF = recomputed ? gate_up_TF : at::empty_like(gate_up_TF);
    swiglu_backward(place_TF, gate_up_TF, d_gate_up_TF, place_TF);
    variable_list result(4);
    if (context->needs_input_grad(2)) {
      result[2] = weight_gradient(down_weight, gradient_TD, place_TF);
    }
    if (context->needs_input_grad(0)) {
      const auto shape = context->saved_data["shape"].toIntVector();
      result[0] = at::mm(d_gate_up_TF, narrow_gate_up).view(shape);
    }
    if (context->needs_input_grad(1)) {
      result[1] = weight_gradient(gate_up_weight, d_gate_up_TF, x_TD);
    }
    return result;
  }
};

}  // namespace

at::Tensor feed_forward(
    const at::Tensor& x,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    bool recompute_gate_up) {
  TORCH_CHECK_VALUE(
      x.dim() >= 1 && gate_up_weight.dim() == 2 && down_weight.dim() == 2 &&
          gate_up_weight.size(1) == x.size(-1) &&
          gate_up_weight.size(0) == 2 * down_weight.size(1) && down_weight.size(1) > 0 &&
          x.size(-1) > 0,
      "[nn] feed_forward of ", x.sizes(), " with weights of ", gate_up_weight.sizes(), " and ",
      down_weight.sizes(), ": they are [.., D], [2F, D] and [D, F]");
  TORCH_CHECK_VALUE(
      is_float16_or_wider(x.scalar_type()), "[nn] feed_forward of ", x.scalar_type(),
      ": use floating point of 16 bits or more");
  if (are_both_fp8("feed_forward", gate_up_weight, down_weight)) {
    const FeedForwardOptions options{.recompute_gate_up = recompute_gate_up};
    return std::get<1>(fp8_feed_forward(x, {}, {}, gate_up_weight, down_weight, options));
  }
  return FeedForwardFunction::apply(x, gate_up_weight, down_weight, recompute_gate_up);
}

}  // namespace sherd
