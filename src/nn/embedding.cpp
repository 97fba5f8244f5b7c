// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cast_copy.h"
#include "kernels/nn/embedding.h"
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& weight, const at::Tensor& tokens) {
    context->set_materialize_grads(false);
    context->save_for_backward({weight, tokens});
    return at::embedding(weight, tokens);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("embedding");
    if (!gradients[0].defined() || !context->needs_input_grad(0)) return {{}, {}};
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[0];
    EmbeddingGradient work{
        .gradient = gradients[0].reshape({-1, weight.size(1)}).contiguous(),
        .tokens = saved[1].reshape({-1}).contiguous()};
    if (const auto target = gradient_target(weight)) {
      work.target = target->buffer;
      work.add = !target->overwrite;
      embedding_gradient(work);
      return {{}, {}};
    }
    work.target = at::empty(weight.sizes(), weight.options());
    embedding_gradient(work);
    return {work.target, {}};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens) {
  TORCH_CHECK_VALUE(
      weight.dim() == 2 && weight.size(1) > 0 && is_float16_or_wider(weight.scalar_type()) &&
          tokens.scalar_type() == at::kLong,
      "[nn] embedding of ", tokens.scalar_type(), " tokens with a weight of ", weight.sizes(), " ",
      weight.scalar_type(), ": use int64, and [V, D] in floating point of 16 bits or more");
  return EmbeddingFunction::apply(weight, tokens);
}

}  // namespace sherd
