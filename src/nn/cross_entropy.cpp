// SPDX-License-Identifier: Apache-2.0
// Shapes: T rows, C rows of a chunk, D dim, V vocabulary.
#include "sherd/nn/functional.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/cast_copy.h"
#include "kernels/nn/cross_entropy.h"
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType math_of(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// body(begin, logits_CV) for each chunk of rows; all use one buffer.
template <class Body>
void each_chunk(const at::Tensor& x_TD, const at::Tensor& weight_VD, int64_t rows, Body body) {
  const int64_t total = x_TD.size(0);
  if (total == 0) return;
  const auto buffer = at::empty({std::min(rows, total), weight_VD.size(0)}, x_TD.options());
  for (int64_t begin = 0; begin < total; begin += rows) {
    const int64_t count = std::min(rows, total - begin);
    auto logits_CV = buffer.narrow(0, 0, count);
    at::mm_out(logits_CV, x_TD.narrow(0, begin, count), weight_VD.t());
    body(begin, logits_CV);
  }
}

/// Where chunks of a weight's gradient are added up: in its unit's buffer, or in one of its own,
/// which has fp32 where the weight has less.
class WeightSum {
 public:
  explicit WeightSum(const at::Tensor& weight) : weight_(weight), target_(gradient_target(weight)) {
    is_own_ = !target_.has_value();
    if (!is_own_) return;
    const auto options = weight.options().dtype(math_of(weight));
    target_ = GradientTarget{at::empty(weight.sizes(), options), /*overwrite=*/true};
  }
  void add(const at::Tensor& gradient, const at::Tensor& input) {
    write_weight_gradient(*target_, gradient, input);
    target_->overwrite = false;
  }
  /// What autograd gets.
  at::Tensor finish() {
    if (target_->overwrite) target_->buffer.zero_();  // there were no rows
    return is_own_ ? target_->buffer.to(weight_.scalar_type()) : at::Tensor();
  }

 private:
  at::Tensor weight_;
  std::optional<GradientTarget> target_;
  bool is_own_ = false;
};

struct CrossEntropyFunction : torch::autograd::Function<CrossEntropyFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& weight,
      const at::Tensor& targets,
      bool keeps,
      int64_t chunk_rows) {
    const auto x_TD = given.to(product_dtype(given)).contiguous();
    const auto weight_VD = weight.to(x_TD.scalar_type());
    const auto numbers = x_TD.options().dtype(math_of(x_TD));
    const auto losses_T = at::empty({x_TD.size(0)}, numbers);
    const auto log_sums_T = at::empty({x_TD.size(0)}, numbers);
    at::Tensor kept_TV;
    each_chunk(
        x_TD, weight_VD, keeps ? x_TD.size(0) : chunk_rows,
        [&](int64_t begin, const at::Tensor& logits_CV) {
          const int64_t count = logits_CV.size(0);
          cross_entropy_forward(
              logits_CV, targets.narrow(0, begin, count), losses_T.narrow(0, begin, count),
              log_sums_T.narrow(0, begin, count), keeps);
          if (keeps) kept_TV = logits_CV;
        });
    context->set_materialize_grads(false);
    context->save_for_backward({x_TD, weight, targets, log_sums_T, kept_TV});
    context->saved_data["chunk"] = chunk_rows;
    return losses_T.sum();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("linear_cross_entropy");
    if (!gradients[0].defined()) return {{}, {}, {}, {}, {}};
    const bool kept = context->get_saved_variables()[4].defined();
    auto result = kept ? from_kept(context, gradients[0]) : from_chunks(context, gradients[0]);
    result.resize(5);
    return result;
  }

  /// The loss's gradient meets [T, D], not [T, V].
  static variable_list from_kept(AutogradContext* context, const at::Tensor& factor) {
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[1];
    const auto& kept_TV = saved[4];
    const auto dtype = kept_TV.scalar_type();
    // Times a factor that is not rounded to 16 bits before.
    const auto scaled = [&](const at::Tensor& x) { return x.to(math_of(x)).mul(factor).to(dtype); };
    at::Tensor x_gradient, sum;
    if (context->needs_input_grad(0)) x_gradient = scaled(at::mm(kept_TV, weight.to(dtype)));
    if (context->needs_input_grad(1)) sum = weight_gradient(weight, kept_TV, scaled(saved[0]));
    return {x_gradient, sum};
  }

  static variable_list from_chunks(AutogradContext* context, const at::Tensor& factor) {
    const auto saved = context->get_saved_variables();
    const auto& x_TD = saved[0];
    const auto weight_VD = saved[1].to(x_TD.scalar_type());
    at::Tensor x_gradient;
    std::optional<WeightSum> sum;
    if (context->needs_input_grad(0)) x_gradient = at::empty_like(x_TD);
    if (context->needs_input_grad(1)) sum.emplace(saved[1]);
    each_chunk(
        x_TD, weight_VD, context->saved_data["chunk"].toInt(),
        [&](int64_t begin, const at::Tensor& logits_CV) {
          const int64_t count = logits_CV.size(0);
          const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, count); };
          cross_entropy_backward(logits_CV, part(saved[2]), part(saved[3]), factor);
          if (x_gradient.defined()) {
            auto place = part(x_gradient);
            at::mm_out(place, logits_CV, weight_VD);
          }
          if (sum) sum->add(logits_CV, part(x_TD));
        });
    return {x_gradient, sum ? sum->finish() : at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const HeadOptions& options) {
  TORCH_CHECK_VALUE(
      x.dim() == 2 && weight.dim() == 2 && weight.size(1) == x.size(1) && weight.size(0) > 0 &&
          targets.dim() == 1 && targets.size(0) == x.size(0),
      "[nn] linear_cross_entropy of ", x.sizes(), " with a weight of ", weight.sizes(),
      " and targets of ", targets.sizes(), ": they are [T, D], [V, D] and [T]");
  TORCH_CHECK_VALUE(
      is_float16_or_wider(x.scalar_type()) && targets.scalar_type() == at::kLong,
      "[nn] linear_cross_entropy of ", x.scalar_type(), " with targets of ", targets.scalar_type(),
      ": use floating point of 16 bits or more, and int64");
  TORCH_CHECK_VALUE(
      options.chunk_rows > 0, "[nn] linear_cross_entropy with chunk_rows ", options.chunk_rows,
      ": at least 1");
  const bool recorded =
      c10::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return CrossEntropyFunction::apply(
      x, weight, targets.contiguous(), recorded && options.logits == HeadLogits::keep,
      options.chunk_rows);
}

}  // namespace sherd
