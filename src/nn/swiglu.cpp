// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cast_copy.h"
#include "kernels/nn/swiglu.h"
#include "nn/rows.h"
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given) {
    const auto gate_up = given.contiguous();
    auto sizes = gate_up.sizes().vec();
    sizes.back() /= 2;
    const auto activation = at::empty(sizes, gate_up.options());
    swiglu_forward(rows_of(gate_up), rows_of(activation));
    context->set_materialize_grads(false);
    context->save_for_backward({gate_up});
    return activation;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("swiglu");
    if (!gradients[0].defined()) return {at::Tensor()};
    const auto gate_up = context->get_saved_variables()[0];
    const auto result = at::empty_like(gate_up);
    swiglu_backward(rows_of(gradients[0].contiguous()), rows_of(gate_up), rows_of(result));
    return {result};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  TORCH_CHECK_VALUE(
      gate_up.dim() >= 1 && gate_up.size(-1) > 0 && gate_up.size(-1) % 2 == 0 &&
          is_float16_or_wider(gate_up.scalar_type()),
      "[nn] swiglu of ", gate_up.sizes(), " ", gate_up.scalar_type(),
      ": the last dim is gate and up, of one width, in floating point of 16 bits or more");
  return SwigluFunction::apply(gate_up);
}

}  // namespace sherd
