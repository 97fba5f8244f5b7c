// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, T = B · S rows, I inner width, C channels of the convolution, H
// heads, P dims of a head, G groups, N state, W width of the filter, D dim.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <tuple>

#include "kernels/nn/gated_norm.h"
#include "kernels/widened.h"
#include "nn/fp8/products.h"
#include "nn/mamba_scan.h"
#include "nn/rows.h"
#include "nn/weight_gradient.h"
#include "sherd/nn/functional.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

c10::List<int64_t> numbers_of(const MambaShape& shape) {
  return {shape.heads, shape.head_dim,    shape.groups, shape.state,
          shape.width, shape.norm_groups, shape.chunk};
}
MambaShape shape_of(const std::vector<int64_t>& numbers, double norm_epsilon) {
  return {numbers[0], numbers[1], numbers[2], numbers[3],
          numbers[4], numbers[5], numbers[6], norm_epsilon};
}

/// The parts of a packed projection, or of its gradient.
struct Parts {
  at::Tensor gate_BSI, channels_BSC, step_BSH;
  Parts(const at::Tensor& packed, const MambaShape& shape) {
    const int64_t inner = shape.inner(), channels = shape.channels();
    gate_BSI = packed.narrow(-1, 0, inner);
    channels_BSC = packed.narrow(-1, inner, channels);
    step_BSH = packed.narrow(-1, inner + channels, shape.heads);
  }
};

/// The parameters in the order of the function's arguments, first those that are used in the dtype
/// of the math.
enum Parameter : size_t {
  kFilter,
  kFilterBias,
  kStepBias,
  kDecayLog,
  kThrough,
  kNorm,
  kParameters,
  kOutput = kParameters
};

class Mixer {
 public:
  Mixer(const at::Tensor& packed, const variable_list& parameters, const MambaShape& shape)
      : shape_(shape), parts_(packed, shape) {
    for (const auto& parameter : parameters) wide_.push_back(widened(parameter).contiguous());
  }

  MambaScan scan() const {
    return {shape_,           parts_.channels_BSC, parts_.step_BSH,
            wide_[kFilter],   wide_[kFilterBias],  wide_[kStepBias],
            wide_[kDecayLog], wide_[kThrough]};
  }
  /// Of rows [T, I].
  GatedNorm norm(const at::Tensor& y_BSHP) const {
    return {
        y_BSHP.view({-1, shape_.inner()}), parts_.gate_BSI.flatten(0, 1), wide_[kNorm],
        shape_.norm_epsilon, shape_.norm_groups};
  }
  const at::Tensor& wide(size_t parameter) const { return wide_[parameter]; }

 private:
  MambaShape shape_;
  Parts parts_;
  variable_list wide_;
};

/// The projection at the end, with a weight in fp8 or not.
class OutputProduct {
 public:
  explicit OutputProduct(const at::Tensor& parameter)
      : parameter_(parameter), encoded_(fp8_weight(parameter)) {}

  struct Result {
    at::Tensor y_TD;
    at::Tensor scales;  ///< of the input in fp8, where the backward needs them
  };
  Result forward(const at::Tensor& x_TI) const {
    if (!encoded_) return {at::mm(x_TI, narrow(x_TI).t()), {}};
    const auto input = fp8_input(*encoded_, x_TI);
    return {
        fp8_product(*encoded_, input).to(x_TI.scalar_type()),
        has_row_scales(encoded_->recipe) ? input.scales : at::Tensor()};
  }

  /// The gradient of a result, ready for the products of the backward.
  struct Gradient {
    at::Tensor wide_TD;
    Fp8ProductGradient encoded;
  };
  Gradient gradient(const at::Tensor& gradient_TD, const at::Tensor& scales) const {
    if (!encoded_) return {gradient_TD, {}};
    return {{}, fp8_gradient(*encoded_, gradient_TD, scales)};
  }
  at::Tensor input_gradient(const Gradient& gradient, at::ScalarType dtype) const {
    if (!encoded_) return at::mm(gradient.wide_TD, narrow(gradient.wide_TD));
    return fp8_input_gradient(*encoded_, gradient.encoded.encoded).to(dtype);
  }
  at::Tensor weight_gradient(const Gradient& gradient, const at::Tensor& x_TI) const {
    if (!encoded_) return sherd::weight_gradient(parameter_, gradient.wide_TD, x_TI);
    return fp8_weight_gradient(parameter_, *encoded_, gradient.encoded, x_TI);
  }

 private:
  at::Tensor narrow(const at::Tensor& like) const { return parameter_.to(like.scalar_type()); }

  at::Tensor parameter_;
  std::optional<Fp8Weight> encoded_;
};

struct MambaFunction : torch::autograd::Function<MambaFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& packed_BSF,
      const at::Tensor& filter,
      const at::Tensor& filter_bias,
      const at::Tensor& step_bias,
      const at::Tensor& decay_log,
      const at::Tensor& through,
      const at::Tensor& norm_weight,
      const at::Tensor& output,
      const MambaShape& shape,
      bool recompute_conv) {
    const WithoutAutocast precise(packed_BSF);
    const auto packed = packed_BSF.contiguous();
    const int64_t sequences = packed.size(0), positions = packed.size(1);
    const variable_list parameters{filter, filter_bias, step_bias, decay_log, through, norm_weight};
    const Mixer mixer(packed, parameters, shape);
    const auto y_BSHP =
        at::empty({sequences, positions, shape.heads, shape.head_dim}, packed.options());
    auto conv_BSC = mixer.scan().convolved();
    const auto states = [&] {
      const auto space = mixer.scan().space(conv_BSC);
      const auto result = at::empty(
          {sequences, space.chunks(), shape.heads, shape.head_dim, shape.state}, packed.options());
      state_space_forward(space, y_BSHP, result);
      return result;
    }();
    if (recompute_conv) conv_BSC.reset();
    const auto normed_TI = at::empty({sequences * positions, shape.inner()}, packed.options());
    gated_norm_forward(mixer.norm(y_BSHP), normed_TI);
    auto result = OutputProduct(output).forward(normed_TI);
    auto kept = parameters;
    kept.insert(kept.end(), {output, packed, y_BSHP, states, conv_BSC, result.scales});
    context->save_for_backward(std::move(kept));
    context->saved_data["shape"] = numbers_of(shape);
    context->saved_data["epsilon"] = shape.norm_epsilon;
    return result.y_TD.view({sequences, positions, output.size(0)});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("mamba_mixer");
    variable_list result(10);
    if (!gradients[0].defined()) return result;
    const auto shape = shape_of(
        context->saved_data["shape"].toIntVector(), context->saved_data["epsilon"].toDouble());
    const auto saved = context->get_saved_variables();
    const variable_list parameters(saved.begin(), saved.begin() + kParameters);
    const auto& [output, packed, y_BSHP, states, kept_conv_BSC, scales] = std::tie(
        saved[kParameters], saved[kParameters + 1], saved[kParameters + 2], saved[kParameters + 3],
        saved[kParameters + 4], saved[kParameters + 5]);
    const Mixer mixer(packed, parameters, shape);
    std::array<at::Tensor, kParameters> of;
    for (size_t i = 0; i < kParameters; ++i) of[i] = at::empty_like(mixer.wide(i));
    const auto d_packed = at::empty_like(packed);
    const Parts into(d_packed, shape);

    const OutputProduct product(output);
    const auto gradient = product.gradient(rows_of(gradients[0]).contiguous(), scales);
    const auto dy_TI = product.input_gradient(gradient, packed.scalar_type());
    {
      const bool wanted = context->needs_input_grad(kOutput + 1);
      const auto normed_TI = wanted ? at::empty_like(dy_TI) : at::Tensor();
      gated_norm_backward(
          mixer.norm(y_BSHP), dy_TI, {dy_TI, into.gate_BSI.flatten(0, 1), of[kNorm], normed_TI});
      if (wanted) result[kOutput + 1] = product.weight_gradient(gradient, normed_TI);
    }
    const auto conv_BSC = kept_conv_BSC.defined() ? kept_conv_BSC : mixer.scan().convolved();
    const auto d_conv_BSC = at::empty_like(conv_BSC);
    const MambaMixed d_mixed(d_conv_BSC, shape);
    state_space_backward(
        mixer.scan().space(conv_BSC), states, dy_TI.view(y_BSHP.sizes()),
        {d_mixed.x_BSHP, into.step_BSH, d_mixed.write_BSGN, d_mixed.read_BSGN, of[kStepBias],
         of[kDecayLog], of[kThrough]});
    const auto conv = mixer.scan().conv();
    causal_conv_backward(
        conv, d_conv_BSC,
        {into.channels_BSC, of[kFilter].view(conv.filter.sizes()), of[kFilterBias]});
    result[0] = d_packed;
    for (size_t i = 0; i < kParameters; ++i) {
      if (context->needs_input_grad(i + 1)) result[i + 1] = delivered(parameters[i], of[i]);
    }
    return result;
  }
};

}  // namespace

void check_mamba(
    const char* operation,
    const at::Tensor& packed,
    const MambaParameters& all,
    const MambaShape& shape) {
  TORCH_CHECK_VALUE(
      shape.heads > 0 && shape.head_dim > 0 && shape.groups > 0 && shape.state > 0 &&
          shape.chunk > 0 && shape.heads % shape.groups == 0 && shape.norm_groups > 0 &&
          shape.inner() % shape.norm_groups == 0 && shape.width > 0 &&
          shape.width <= kMostConvWidth,
      "[nn] ", operation, " with ", shape.heads, " heads of ", shape.head_dim, " dims in ",
      shape.groups, " groups, a state of ", shape.state, ", ", shape.norm_groups,
      " norms, chunks of ", shape.chunk, " and a filter of ", shape.width,
      ": groups divide the heads, norms the inner width, and a filter has at most ", kMostConvWidth,
      " positions");
  TORCH_CHECK_VALUE(
      packed.dim() == 3 && packed.size(-1) == shape.inner() + shape.channels() + shape.heads,
      "[nn] ", operation, " of ", packed.sizes(), ": it takes [B, S, ",
      shape.inner() + shape.channels() + shape.heads, "]");
  TORCH_CHECK_VALUE(
      is_float16_or_wider(packed.scalar_type()), "[nn] ", operation, " of ", packed.scalar_type(),
      ": use floating point of 16 bits or more");
  const auto expect = [operation](const at::Tensor& parameter, const char* name, int64_t count) {
    TORCH_CHECK_VALUE(
        parameter.numel() == count, "[nn] ", operation, " has a ", name, " of ", parameter.sizes(),
        ": it has ", count, " elements");
  };
  expect(all.filter, "filter", shape.channels() * shape.width);
  expect(all.filter_bias, "filter_bias", shape.channels());
  expect(all.step_bias, "step_bias", shape.heads);
  expect(all.decay_log, "decay_log", shape.heads);
  expect(all.through, "through", shape.heads);
  expect(all.norm_weight, "norm_weight", shape.inner());
  TORCH_CHECK_VALUE(
      all.output.dim() == 2 && all.output.size(1) == shape.inner(), "[nn] ", operation,
      " has an output of ", all.output.sizes(), ": it is [D, ", shape.inner(), "]");
}

at::Tensor mamba_mixer(
    const at::Tensor& packed,
    const MambaParameters& parameters,
    const MambaShape& shape,
    bool recompute_conv) {
  check_mamba("mamba_mixer", packed, parameters, shape);
  return MambaFunction::apply(
      packed, parameters.filter, parameters.filter_bias, parameters.step_bias, parameters.decay_log,
      parameters.through, parameters.norm_weight, parameters.output, shape, recompute_conv);
}

}  // namespace sherd
