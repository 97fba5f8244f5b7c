// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, T tokens, D dim, E experts, K experts of a token, R = T · K rows of all
// experts, sorted by expert, F width of gate and up together or of one of them. With several ranks
// X are the rows of this rank's experts, which may come from all of them; else X = R.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "kernels/cast_copy.h"
#include "kernels/nn/grouped_product.h"
#include "kernels/nn/routing.h"
#include "kernels/nn/sum_rows.h"
#include "kernels/nn/weighted_swiglu.h"
#include "kernels/widened.h"
#include "nn/expert_dispatch.h"
#include "nn/normed_rows.h"
#include "nn/rows.h"
#include "nn/weight_gradient.h"
#include "sherd/nn/functional.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The rows that the router and the experts see: rms_norm(x + residual), or x without a norm.
NormedRows input_rows(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& norm, double epsilon) {
  if (norm.defined()) return norm_rows(x, residual, norm, epsilon);
  const auto dense = x.contiguous();
  return {dense, dense, {}};
}

int64_t sequences_of(const at::Tensor& x) {
  return c10::multiply_integers(x.sizes().slice(0, static_cast<size_t>(x.dim()) - 2));
}

/// The loads of the experts over whole sequences, of which these ranks have equal parts.
at::Tensor loads_of_sequences(
    const Routing& routing, int64_t sequences, const std::vector<Exchange>& ranks) {
  auto loads_BE = expert_loads(routing, sequences);
  for (const auto& line : ranks) {
    loads_BE = line.sum_numbers(loads_BE).div_(static_cast<double>(line.size()));
  }
  return loads_BE;
}

/// The products of all experts with one parameter, [E, M, K].
class ExpertProducts {
 public:
  ExpertProducts(const at::Tensor& parameter, at::ScalarType dtype, const at::Tensor& end_E)
      : parameter_(parameter), narrow_(parameter.to(dtype)), end_E_(end_E) {}

  at::Tensor forward(const at::Tensor& rows_RK) const {
    return grouped_product(rows_RK, narrow_, end_E_);
  }
  at::Tensor input_gradient(const at::Tensor& gradient_RM) const {
    return grouped_input_gradient(gradient_RM, narrow_, end_E_);
  }
  /// Writes it to the unit's buffer and returns an undefined tensor, or returns it.
  at::Tensor weight_gradient(const at::Tensor& gradient_RM, const at::Tensor& rows_RK) const {
    if (const auto target = gradient_target(parameter_)) {
      grouped_weight_gradient({gradient_RM, rows_RK, end_E_, target->buffer, !target->overwrite});
      return {};
    }
    auto own = at::empty(parameter_.sizes(), rows_RK.options());
    grouped_weight_gradient({gradient_RM, rows_RK, end_E_, own});
    return own;
  }

 private:
  at::Tensor parameter_;
  at::Tensor narrow_;
  at::Tensor end_E_;
};

/// What a backward has at hand.
class ExpertsBackward {
 public:
  /// The inputs of the function. A norm and a residual come last among its tensors: inputs that are
  /// none are not counted by needs_input_grad.
  enum Input : size_t { kX, kRouter, kGateUp, kDown, kNorm, kResidual, kInputs = 10 };

  /// What the function keeps.
  enum Saved : size_t {
    kSum,
    kNormWeight,
    kRouterWeight,
    kGateUpWeight,
    kDownWeight,
    kInputRows,   // of this rank's experts; undefined if they are gathered or sent again
    kGateUpRows,  // undefined if they are recomputed
    kChances,
    kChosen,
    kRows,
    kTokens,
    kWeights,
    kEnds,
    kOrder,          // of rows that arrive from ranks
    kExpertWeights,  // of rows that arrive; undefined if none do
    kExpertEnds,     // of this rank's experts
    kLoads           // of whole sequences; undefined if this rank's tokens are whole sequences
  };

  explicit ExpertsBackward(AutogradContext* context)
      : context_(context),
        saved_(context->get_saved_variables()),
        dtype_(static_cast<c10::ScalarType>(context->saved_data["product_dtype"].toInt())),
        routing_{
            saved_[kChances],
            saved_[kChosen],
            saved_[kRows],
            saved_[kTokens],
            saved_[kWeights],
            saved_[kEnds],
            context->saved_data["norm_top_k"].toBool()},
        dispatch_(route_of(*context), saved_[kOrder], saved_[kExpertEnds]),
        input_(input_rows(
            saved_[kSum], {}, saved_[kNormWeight], context->saved_data["epsilon"].toDouble())) {}

  /// Returns whether rows went to other ranks.
  bool moves_rows() const { return dispatch_.moves(); }
  /// Returns a gradient of 0 for the result.
  at::Tensor no_gradient() const { return at::zeros_like(saved_[kSum]); }

  /// Goes back through the experts: sets their weights' gradients and that of the rows' weights,
  /// and returns that of the sorted input rows.
  at::Tensor through_experts(
      const at::Tensor& gradient_TD, at::Tensor& d_weight_R, variable_list& result) const {
    const ExpertProducts gate_up(saved_[kGateUpWeight], dtype_, dispatch_.ends());
    const bool recomputed = !saved_[kGateUpRows].defined();
    // Rows are gathered again where they are needed, but sent only once.
    auto input_XD = dispatch_.moves() ? sent_input() : at::Tensor();
    const auto gate_up_XF = recomputed ? gate_up.forward(input_XD.defined() ? input_XD : sorted())
                                       : saved_[kGateUpRows];
    const bool in_place = recomputed || context_->saved_data["overwrites"].toBool();
    const auto d_gate_up_XF = in_place ? gate_up_XF : at::empty_like(gate_up_XF);
    const auto& weight_X = dispatch_.moves() ? saved_[kExpertWeights] : routing_.weight_R;
    const auto d_weight_X = at::empty_like(weight_X);
    {
      const ExpertProducts down(saved_[kDownWeight], dtype_, dispatch_.ends());
      const auto gradient_XD =
          dispatch_.to_experts(gradient_TD.to(dtype_).index_select(0, routing_.token_R));
      // The activation takes the place of its own gradient.
      const auto place_XF = down.input_gradient(gradient_XD);
      weighted_swiglu_backward(
          {.gate_up = gate_up_XF,
           .weight = weight_X,
           .d_activation = place_XF,
           .d_gate_up = d_gate_up_XF,
           .d_weight = d_weight_X});
      if (wants(kDown)) result[kDown] = down.weight_gradient(gradient_XD, place_XF);
    }
    if (wants(kGateUp)) {
      if (!input_XD.defined()) input_XD = sorted();
      result[kGateUp] = gate_up.weight_gradient(d_gate_up_XF, input_XD);
    }
    input_XD.reset();
    d_weight_R = dispatch_.from_experts(d_weight_X);
    return dispatch_.from_experts(gate_up.input_gradient(d_gate_up_XF));
  }

  /// Goes back through the router, and from the sorted rows to those of the tokens. The gradients
  /// of the experts' rows and weights may be undefined, and those of the balance and the sum.
  at::Tensor through_router(
      const at::Tensor& d_rows_RD,
      const at::Tensor& d_weight_R,
      const at::Tensor& d_balance,
      const at::Tensor& d_sum,
      variable_list& result) const {
    const auto& router = saved_[kRouterWeight];
    const int64_t sequences = sequences_of(saved_[kSum]);
    const auto loads_BE = saved_[kLoads].defined() || !d_balance.defined()
                              ? saved_[kLoads]
                              : expert_loads(routing_, sequences);
    const auto d_logits_TE = routing_gradient(routing_, d_weight_R, d_balance, loads_BE);
    if (wants(kRouter)) {
      result[kRouter] = weight_gradient(router, d_logits_TE, widened(rows_of(input_.y)));
    }
    const auto d_y_TD = at::mm(d_logits_TE, widened(router)).to(input_.y.scalar_type());
    if (d_rows_RD.defined()) sum_rows({d_rows_RD, routing_.row_TK, d_y_TD, d_y_TD});
    const auto d_y = d_y_TD.view(input_.y.sizes());
    if (!saved_[kNormWeight].defined()) return d_sum.defined() ? d_sum + d_y : d_y;
    return norm_rows_gradient(input_, saved_[kNormWeight], d_y, d_sum, wants(kNorm), result[kNorm]);
  }

 private:
  static c10::intrusive_ptr<ExpertDispatch::Route> route_of(AutogradContext& context) {
    const auto& kept = context.saved_data["route"];
    if (kept.isNone()) return nullptr;
    return c10::static_intrusive_pointer_cast<ExpertDispatch::Route>(kept.toCapsule());
  }
  bool wants(Input input) const { return context_->needs_input_grad(input); }
  /// Returns the input rows of this rank's experts, which may come from other ranks.
  at::Tensor sent_input() const {
    return saved_[kInputRows].defined() ? saved_[kInputRows] : dispatch_.to_experts(sorted());
  }
  /// Returns the input rows of all experts for this rank's tokens.
  at::Tensor sorted() const {
    return rows_of(input_.y).to(dtype_).index_select(0, routing_.token_R);
  }

  AutogradContext* context_;
  variable_list saved_;
  at::ScalarType dtype_;
  Routing routing_;
  ExpertDispatch dispatch_;
  NormedRows input_;
};

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& router,
      const at::Tensor& gate_up_weight,
      const at::Tensor& down_weight,
      const std::optional<at::Tensor>& norm_weight,
      const std::optional<at::Tensor>& residual,
      double epsilon,
      const RoutingOptions& chosen,
      const FeedForwardOptions& options,
      const std::optional<Exchange>& ranks) {
    const auto dtype = product_dtype(x);
    const WithoutAutocast precise(x);
    const auto norm = norm_weight.value_or(at::Tensor());
    auto input = input_rows(x, residual.value_or(at::Tensor()), norm, epsilon);
    auto y_TD = rows_of(input.y);
    // A choice between near equals must not depend on how products are rounded.
    const auto routing =
        route(at::mm(widened(y_TD), widened(router).t()), chosen.top_k, chosen.norm_top_k);
    const auto loads_BE = loads_of_sequences(routing, sequences_of(x), chosen.sequence_ranks);
    const auto balance = balance_loss(routing, loads_BE);
    const ExpertDispatch dispatch(ranks, routing.end_E, routing.token_R.size(0));
    auto input_XD = dispatch.to_experts(y_TD.to(dtype).index_select(0, routing.token_R));
    y_TD.reset();
    input.y.reset();
    const auto weight_X = dispatch.to_experts(routing.weight_R);
    const auto gate_up_XF =
        ExpertProducts(gate_up_weight, dtype, dispatch.ends()).forward(input_XD);
    if (!dispatch.moves() || options.recompute_gate_up) input_XD.reset();
    const auto result = at::empty(x.sizes(), input.sum.options());
    if (!options.skips_result) {
      const auto activation_XF =
          at::empty({gate_up_XF.size(0), down_weight.size(2)}, gate_up_XF.options());
      weighted_swiglu_forward(gate_up_XF, weight_X, activation_XF);
      const auto rows_XD =
          ExpertProducts(down_weight, dtype, dispatch.ends()).forward(activation_XF);
      sum_rows(
          {.rows = dispatch.from_experts(rows_XD),
           .indices = routing.row_TK,
           .summand = options.adds_sum ? rows_of(input.sum) : at::Tensor(),
           .result = rows_of(result)});
    }
    context->set_materialize_grads(false);
    context->save_for_backward(
        {input.sum, norm, router, gate_up_weight, down_weight, input_XD,
         options.recompute_gate_up ? at::Tensor() : gate_up_XF, routing.chances_TE,
         routing.chosen_TK, routing.row_TK, routing.token_R, routing.weight_R, routing.end_E,
         dispatch.order(), dispatch.moves() ? weight_X : at::Tensor(), dispatch.ends(),
         chosen.sequence_ranks.empty() ? at::Tensor() : loads_BE});
    context->saved_data["route"] =
        dispatch.moves() ? c10::IValue::make_capsule(dispatch.route()) : c10::IValue();
    context->saved_data["product_dtype"] = static_cast<int64_t>(dtype);
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["norm_top_k"] = chosen.norm_top_k;
    context->saved_data["residual"] = residual.has_value();
    context->saved_data["adds_sum"] = options.adds_sum;
    context->saved_data["overwrites"] = options.overwrites;
    return {input.sum, result, balance};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    using enum ExpertsBackward::Input;
    refuse_second_derivative("experts");
    variable_list result(kInputs);
    auto d_sum = gradients[0];
    if (context->saved_data["adds_sum"].toBool() && gradients[1].defined()) {
      d_sum = d_sum.defined() ? d_sum + gradients[1] : gradients[1];
    }
    result[kX] = d_sum;
    const ExpertsBackward all(context);
    // Other ranks wait for this one's rows, even if they are 0.
    const auto d_result =
        gradients[1].defined() || !all.moves_rows() ? gradients[1] : all.no_gradient();
    if (d_result.defined() || gradients[2].defined()) {
      at::Tensor d_rows_RD, d_weight_R;
      if (d_result.defined()) {
        d_rows_RD = all.through_experts(rows_of(d_result), d_weight_R, result);
      }
      result[kX] = all.through_router(d_rows_RD, d_weight_R, gradients[2], d_sum, result);
    }
    if (context->saved_data["residual"].toBool()) result[kResidual] = result[kX];
    return result;
  }
};

void check(const char* operation, const at::Tensor& x, const ExpertParameters& all, int64_t top_k) {
  const auto& [router, gate_up, down, ranks] = all;
  const int64_t parts = ranks ? ranks->size() : 1;
  TORCH_CHECK_VALUE(
      x.dim() >= 2 && router.dim() == 2 && gate_up.dim() == 3 && down.dim() == 3 &&
          x.size(-1) > 0 && router.size(1) == x.size(-1) && router.size(0) > 0 &&
          gate_up.size(0) * parts == router.size(0) && gate_up.size(2) == x.size(-1) &&
          gate_up.size(1) == 2 * down.size(2) && down.size(0) == gate_up.size(0) &&
          down.size(1) == x.size(-1) && down.size(2) > 0,
      "[nn] ", operation, " of ", x.sizes(), " with a router of ", router.sizes(), ", gate_up of ",
      gate_up.sizes(), " and down of ", down.sizes(),
      ": they are [.., S, D], [E, D], [E, 2F, D] and [E, D, F]",
      parts > 1 ? c10::str(", with E / ", parts, " experts on each of ", parts, " ranks") : "");
  TORCH_CHECK_VALUE(
      is_float16_or_wider(x.scalar_type()), "[nn] ", operation, " of ", x.scalar_type(),
      ": use floating point of 16 bits or more");
  TORCH_CHECK_VALUE(
      top_k > 0 && top_k <= router.size(0), "[nn] ", operation, " with top_k = ", top_k, " and ",
      router.size(0), " experts: choose at least 1, and at most as many as there are");
}

}  // namespace

ExpertsResult norm_experts(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const ExpertParameters& parameters,
    const RoutingOptions& routing,
    const FeedForwardOptions& options) {
  const auto [mine, other] = norm_inputs("norm_experts", x, residual, norm);
  check("norm_experts", x, parameters, routing.top_k);
  auto all = ExpertsFunction::apply(
      mine, parameters.router, parameters.gate_up, parameters.down,
      std::optional<at::Tensor>(norm.weight), other, norm.epsilon, routing, options,
      parameters.ranks);
  return {std::move(all[0]), std::move(all[1]), std::move(all[2])};
}

std::tuple<at::Tensor, at::Tensor> experts(
    const at::Tensor& x,
    const ExpertParameters& parameters,
    const RoutingOptions& routing,
    bool recompute_gate_up) {
  check("experts", x, parameters, routing.top_k);
  const std::optional<at::Tensor> none;
  const FeedForwardOptions options{.recompute_gate_up = recompute_gate_up};
  auto all = ExpertsFunction::apply(
      x, parameters.router, parameters.gate_up, parameters.down, none, none, 0.0, routing, options,
      parameters.ranks);
  return {std::move(all[1]), std::move(all[2])};
}

}  // namespace sherd
