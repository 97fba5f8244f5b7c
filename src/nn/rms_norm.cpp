// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "kernels/cast_copy.h"
#include "kernels/nn/rms_norm.h"
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  /// {y}, or with a residual {y, sum}.
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& residual,
      double epsilon) {
    const auto x = given.contiguous();
    const auto dtype = x.scalar_type();
    RmsNormForward work{.x = x, .weight = weight.to(dtype).contiguous(), .epsilon = epsilon};
    work.y = at::empty_like(x);
    const auto math = dtype == at::kDouble ? at::kDouble : at::kFloat;
    work.scale = at::empty({x.numel() / weight.numel()}, x.options().dtype(math));
    if (residual) {
      work.residual = residual->contiguous();
      work.sum = at::empty_like(x);
    }
    rms_norm_forward(work);
    context->set_materialize_grads(false);
    context->save_for_backward({residual ? work.sum : x, weight, work.scale});
    return residual ? variable_list{work.y, work.sum} : variable_list{work.y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("rms_norm");
    const bool adds = gradients.size() == 2;
    const auto& y_gradient = gradients[0];
    const auto sum_gradient = adds ? gradients[1] : at::Tensor();
    if (!y_gradient.defined()) return {sum_gradient, {}, sum_gradient, {}};
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[1];
    RmsNormBackward work{
        .y_gradient = y_gradient.contiguous(),
        .sum = saved[0],
        .weight = weight.to(saved[0].scalar_type()).contiguous(),
        .scale = saved[2],
        .gradient = at::empty_like(saved[0])};
    if (sum_gradient.defined()) work.sum_gradient = sum_gradient.contiguous();
    at::Tensor returned;
    if (context->needs_input_grad(1)) {
      if (const auto target = gradient_target(weight)) {
        work.weight_gradient = target->buffer;
        work.add = !target->overwrite;
      } else {
        work.weight_gradient = returned = at::empty(weight.sizes(), weight.options());
      }
    }
    rms_norm_backward(work);
    return {work.gradient, returned, adds ? work.gradient : at::Tensor(), {}};
  }
};

void check(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK_VALUE(
      x.dim() >= 1 && weight.dim() == 1 && weight.numel() > 0 && x.size(-1) == weight.numel(),
      "[nn] rms_norm of ", x.sizes(), " with a weight of ", weight.sizes(),
      ": the weight has one element for each of the last dim");
  TORCH_CHECK_VALUE(
      is_float16_or_wider(x.scalar_type()), "[nn] rms_norm of ", x.scalar_type(),
      ": use floating point of 16 bits or more");
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  check(x, weight);
  return RmsNormFunction::apply(x, weight, std::optional<at::Tensor>(), epsilon)[0];
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon) {
  check(x, weight);
  TORCH_CHECK_VALUE(
      x.sizes() == residual.sizes(), "[nn] add_rms_norm of ", x.sizes(), " and ", residual.sizes(),
      ": use tensors of one shape");
  // Under autocast one may be narrower; the sum is not.
  const auto dtype = c10::promoteTypes(x.scalar_type(), residual.scalar_type());
  const auto both = RmsNormFunction::apply(
      x.to(dtype), weight, std::optional<at::Tensor>(residual.to(dtype)), epsilon);
  return {both[1], both[0]};
}

}  // namespace sherd
