// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions of a whole sequence, s of this rank's part, I inner width, C
// channels of the convolution, H heads, P dims of a head, G groups, N state, n ranks.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/nn/gated_norm.h"
#include "kernels/widened.h"
#include "nn/autocast.h"
#include "nn/mamba_scan.h"
#include "nn/rows.h"
#include "sherd/nn/functional.h"
#include "sherd/nn/linear.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Note [Mamba-2 over ranks that share sequences]
// The recurrence runs over whole sequences, but each head on its own. So every rank gets all
// positions, in order, for 1/n of the heads, by an all-to-all along each axis, and its results go
// back the same way. What is done for each position on its own, which are the projections, the gate
// and the norm over all heads, is done for this rank's positions with whole weights. No rank waits
// for another one's state, and the norm sees all heads.

/// The convolution and the state space, from {channels, steps} [B, S, C + H] to [B, S, I].
struct ScanFunction : torch::autograd::Function<ScanFunction> {
  static constexpr size_t kParameterCount = 5;

  static MambaScan scan_of(
      const at::Tensor& packed, const variable_list& parameters, const MambaShape& shape) {
    std::array<at::Tensor, kParameterCount> wide;
    for (size_t i = 0; i < kParameterCount; ++i) wide[i] = widened(parameters[i]).contiguous();
    return {
        shape,
        packed.narrow(-1, 0, shape.channels()),
        packed.narrow(-1, shape.channels(), shape.heads),
        wide[0],
        wide[1],
        wide[2],
        wide[3],
        wide[4]};
  }

  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const at::Tensor& filter,
      const at::Tensor& filter_bias,
      const at::Tensor& step_bias,
      const at::Tensor& decay_log,
      const at::Tensor& through,
      const MambaShape& shape,
      bool recompute_conv) {
    const WithoutAutocast precise(given);
    const auto packed = given.contiguous();
    const auto scan = scan_of(packed, {filter, filter_bias, step_bias, decay_log, through}, shape);
    const auto y_BSHP =
        at::empty({packed.size(0), packed.size(1), shape.heads, shape.head_dim}, packed.options());
    auto conv_BSC = scan.convolved();
    const auto space = scan.space(conv_BSC);
    const auto states = at::empty(
        {packed.size(0), space.chunks(), shape.heads, shape.head_dim, shape.state},
        packed.options());
    state_space_forward(space, y_BSHP, states);
    context->save_for_backward(
        {filter, filter_bias, step_bias, decay_log, through, packed, states,
         recompute_conv ? at::Tensor() : conv_BSC});
    context->saved_data["sizes"] = std::vector<int64_t>{shape.heads, shape.head_dim, shape.groups,
                                                        shape.state, shape.width,    shape.chunk};
    return y_BSHP.flatten(2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("shared_mamba_mixer");
    const auto sizes = context->saved_data["sizes"].toIntVector();
    MambaShape shape;
    shape.heads = sizes[0];
    shape.head_dim = sizes[1];
    shape.groups = sizes[2];
    shape.state = sizes[3];
    shape.width = sizes[4];
    shape.chunk = sizes[5];
    const auto saved = context->get_saved_variables();
    const variable_list parameters(saved.begin(), saved.begin() + kParameterCount);
    const auto& packed = saved[kParameterCount];
    const auto scan = scan_of(packed, parameters, shape);
    const auto conv_BSC =
        saved[kParameterCount + 2].defined() ? saved[kParameterCount + 2] : scan.convolved();
    const auto d_packed = at::empty_like(packed);
    const auto d_conv_BSC = at::empty_like(conv_BSC);
    const MambaMixed d_mixed(d_conv_BSC, shape);
    const auto like = [](const at::Tensor& x) { return at::empty_like(x); };
    const std::array<at::Tensor, kParameterCount> of{
        like(scan.filter), like(scan.filter_bias), like(scan.step_bias), like(scan.decay_log),
        like(scan.through)};
    const auto dy_BSHP = gradients[0]
                             .to(packed.scalar_type())
                             .contiguous()
                             .unflatten(-1, {shape.heads, shape.head_dim});
    state_space_backward(
        scan.space(conv_BSC), saved[kParameterCount + 1], dy_BSHP,
        {d_mixed.x_BSHP, d_packed.narrow(-1, shape.channels(), shape.heads), d_mixed.write_BSGN,
         d_mixed.read_BSGN, of[2], of[3], of[4]});
    causal_conv_backward(
        scan.conv(), d_conv_BSC,
        {d_packed.narrow(-1, 0, shape.channels()), of[0].view({shape.channels(), shape.width}),
         of[1]});
    variable_list result(8);
    result[0] = d_packed;
    for (size_t i = 0; i < kParameterCount; ++i) {
      if (context->needs_input_grad(i + 1)) result[i + 1] = delivered(parameters[i], of[i]);
    }
    return result;
  }
};

/// The norm of y · silu(gate), [.., I] each.
struct GatedNormFunction : torch::autograd::Function<GatedNormFunction> {
  static GatedNorm norm_of(
      const at::Tensor& y,
      const at::Tensor& gate,
      const at::Tensor& weight,
      double epsilon,
      int64_t groups) {
    return {rows_of(y), rows_of(gate), widened(weight).contiguous(), epsilon, groups};
  }

  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& y,
      const at::Tensor& gate,
      const at::Tensor& weight,
      double epsilon,
      int64_t groups) {
    const WithoutAutocast precise(y);
    const auto dense = y.contiguous();
    const auto result = at::empty_like(dense);
    gated_norm_forward(norm_of(dense, gate, weight, epsilon, groups), rows_of(result));
    context->save_for_backward({dense, gate, weight});
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["groups"] = groups;
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("shared_mamba_mixer");
    const auto saved = context->get_saved_variables();
    const auto norm = norm_of(
        saved[0], saved[1], saved[2], context->saved_data["epsilon"].toDouble(),
        context->saved_data["groups"].toInt());
    const auto dy = at::empty_like(saved[0]);
    const auto d_gate = at::empty(saved[0].sizes(), saved[1].options());
    const auto d_weight = at::empty_like(norm.weight);
    gated_norm_backward(
        norm, rows_of(gradients[0].to(norm.x.scalar_type())).contiguous(),
        {rows_of(dy), rows_of(d_gate), d_weight, {}});
    variable_list result(5);
    result[0] = dy;
    result[1] = d_gate;
    if (context->needs_input_grad(2)) result[2] = delivered(saved[2], d_weight);
    return result;
  }
};

/// The heads of one rank among those that share sequences.
class SharedHeads {
 public:
  SharedHeads(const MambaShape& whole, const MambaRanks& ranks) : whole_(whole), ranks_(ranks) {
    if (ranks.tensor) tensor_ = {ranks.tensor->size(), ranks.tensor->rank()};
    if (ranks.context) context_ = {ranks.context->size(), ranks.context->rank()};
    TORCH_CHECK_VALUE(
        whole.heads % count() == 0 && (whole.groups % count() == 0 || count() % whole.groups == 0),
        "[nn] shared_mamba_mixer with ", whole.heads, " heads in ", whole.groups, " groups on ",
        count(), " ranks (", context_.size, " along the context, ", tensor_.size,
        " along the tensor axis): the ranks must divide the heads, and the groups or the ranks the "
        "others; use other numbers of ranks");
  }

  /// Returns the sizes of this rank's heads.
  MambaShape shape() const {
    auto result = whole_;
    result.heads = whole_.heads / count();
    result.groups = groups();
    return result;
  }

  /// Returns {channels, steps} of all positions for this rank's heads, from those of this rank's
  /// positions for all heads.
  at::Tensor to_heads(const at::Tensor& packed_BsF) const {
    auto x = by_rank(packed_BsF).flatten(-2);
    if (ranks_.tensor) x = ranks_.tensor->all_to_all_dims(x, -1, 1);
    if (ranks_.context) x = in_order(ranks_.context->all_to_all_dims(x, -1, 1));
    return x;
  }
  /// Moves results of this rank's heads to their positions.
  at::Tensor to_positions(const at::Tensor& y_BSI) const {
    auto y = y_BSI;
    if (ranks_.context) y = ranks_.context->all_to_all_dims(by_context_rank(y), 1, -1);
    if (ranks_.tensor) y = ranks_.tensor->all_to_all_dims(y, 1, -1);
    return y;
  }
  /// Returns the elements for this rank's heads of a parameter with one for each.
  at::Tensor of_heads(const at::Tensor& parameter_H) const {
    const int64_t mine = whole_.heads / count();
    return parameter_H.narrow(0, number() * mine, mine);
  }
  /// Returns the elements for this rank's channels of a parameter with `each` for each of all.
  at::Tensor of_channels(const at::Tensor& parameter, int64_t each) const {
    const int64_t inner = whole_.inner(), keys = whole_.groups * whole_.state;
    const auto some = [&](int64_t first, int64_t mine) {
      return parameter.narrow(0, first * each, mine * each);
    };
    const int64_t mine = inner / count(), group = first_group() * whole_.state;
    const int64_t own_keys = groups() * whole_.state;
    return at::cat(
        {some(number() * mine, mine), some(inner + group, own_keys),
         some(inner + keys + group, own_keys)});
  }

 private:
  struct Place {
    int64_t size = 1;
    int64_t rank = 0;
  };
  int64_t count() const { return tensor_.size * context_.size; }
  /// Along the tensor axis first, so heads lie in this order after to_positions().
  int64_t number() const { return tensor_.rank * context_.size + context_.rank; }
  int64_t groups() const { return std::max<int64_t>(whole_.groups / count(), 1); }
  int64_t first_group() const { return number() * whole_.groups / count(); }

  /// Returns, for each rank, the channels and steps of its heads: [B, s, n, ..].
  at::Tensor by_rank(const at::Tensor& packed) const {
    const int64_t n = count(), inner = whole_.inner(), keys = whole_.groups * whole_.state;
    const auto evenly = [&](int64_t first, int64_t size) {
      return packed.narrow(-1, first, size).unflatten(-1, {n, size / n});
    };
    // Ranks with heads of one group get that group each.
    const auto of_groups = [&](int64_t first) {
      if (whole_.groups % n == 0) return evenly(first, keys);
      return packed.narrow(-1, first, keys)
          .unflatten(-1, {whole_.groups, 1, whole_.state})
          .expand({-1, -1, -1, n / whole_.groups, -1})
          .flatten(2, 3);
    };
    return at::cat(
        {evenly(0, inner), of_groups(inner), of_groups(inner + keys),
         evenly(whole_.channels(), whole_.heads)},
        -1);
  }

  /// Positions in the order of the ranks' chunks to the order of the sequence, and back.
  at::Tensor in_order(const at::Tensor& x) const {
    const auto halves = x.unflatten(1, {context_.size, 2, -1});  // [B, n, 2, L, ..]
    return at::cat({halves.select(2, 0), halves.select(2, 1).flip(1)}, 1).flatten(1, 2);
  }
  at::Tensor by_context_rank(const at::Tensor& x) const {
    const auto chunks = x.unflatten(1, {2 * context_.size, -1});
    const auto second = chunks.narrow(1, context_.size, context_.size).flip(1);
    return at::cat({chunks.narrow(1, 0, context_.size).unsqueeze(2), second.unsqueeze(2)}, 2)
        .flatten(1, 3);
  }

  MambaShape whole_;
  MambaRanks ranks_;
  Place tensor_;
  Place context_;
};

}  // namespace

at::Tensor shared_mamba_mixer(
    const at::Tensor& packed,
    const MambaParameters& parameters,
    const MambaShape& shape,
    const MambaRanks& ranks,
    bool recompute_conv) {
  if (!ranks.context && !ranks.tensor) {
    return mamba_mixer(packed, parameters, shape, recompute_conv);
  }
  check_mamba("shared_mamba_mixer", packed, parameters, shape);
  const SharedHeads heads(shape, ranks);
  const int64_t inner = shape.inner();
  const auto y_BSI = ScanFunction::apply(
      heads.to_heads(packed.narrow(-1, inner, packed.size(-1) - inner)),
      heads.of_channels(parameters.filter.flatten(), shape.width),
      heads.of_channels(parameters.filter_bias, 1), heads.of_heads(parameters.step_bias),
      heads.of_heads(parameters.decay_log), heads.of_heads(parameters.through), heads.shape(),
      recompute_conv);
  const auto normed = GatedNormFunction::apply(
      heads.to_positions(y_BSI), packed.narrow(-1, 0, inner), parameters.norm_weight,
      shape.norm_epsilon, shape.norm_groups);
  return sherd::linear(normed, parameters.output);
}

}  // namespace sherd
