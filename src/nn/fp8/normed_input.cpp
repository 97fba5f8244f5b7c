// SPDX-License-Identifier: Apache-2.0
#include "nn/fp8/normed_input.h"

#include "nn/rows.h"

namespace sherd {
namespace {

at::Tensor norm_weight_like(const at::Tensor& norm_weight, const at::Tensor& x) {
  return norm_weight.to(x.scalar_type()).contiguous();
}

}  // namespace

NormedInput NormedInput::make(
    const Fp8Weight& weight,
    const at::Tensor& x,
    const at::Tensor& residual,
    const at::Tensor& norm_weight,
    double epsilon) {
  NormedInput result;
  if (!norm_weight.defined()) {
    result.rows.sum = x;
    result.encoded = fp8_input(weight, x);
  } else if (has_row_scales(weight.recipe)) {
    auto normed = encode_normed(
        x.contiguous(), residual.defined() ? residual.contiguous() : residual,
        norm_weight_like(norm_weight, x), epsilon);
    result.rows = {normed.sum, {}, normed.scale};
    result.encoded = std::move(normed.rows);
  } else {
    result.rows = norm_rows(x, residual, norm_weight, epsilon);
    result.encoded = fp8_input(weight, result.rows.y);
    result.rows.y.reset();
  }
  return result;
}

Fp8Matrix gather_encoded(
    const SharedRows& ranks, const Fp8Matrix& mine, const std::vector<int64_t>& sizes) {
  if (!ranks.are_shared()) return mine;
  // As many scales for each row, [.., 1] and so on, are joined along the same dim as the values.
  const bool rows_last = mine.scaling == Scaling::tile;
  auto of_scales = sizes;
  of_scales.back() = mine.scales.numel() / mine.values.size(0);
  const auto scales = rows_last ? mine.scales.t().contiguous() : mine.scales;
  const auto all = ranks.gather({mine.values.view(sizes), scales.view(of_scales)});
  const auto all_scales = rows_of(all[1]);
  return {
      rows_of(all[0]),
      rows_last                      ? all_scales.t().contiguous()
      : mine.scaling == Scaling::row ? all_scales.view(-1)
                                     : all_scales,
      mine.scaling};
}

NormedRows gather_normed(
    const SharedRows& ranks, const NormedRows& mine, const std::vector<int64_t>& sizes) {
  if (!ranks.are_shared()) return mine;
  auto of_scales = sizes;
  of_scales.back() = 1;
  const auto all = ranks.gather({mine.sum.view(sizes), mine.scale.view(of_scales)});
  return {rows_of(all[0]), {}, all[1].view(-1)};
}

at::Tensor normed_weight_gradient(
    const at::Tensor& parameter,
    const Fp8Weight& weight,
    const Fp8ProductGradient& gradient,
    const NormedRows& rows,
    const at::Tensor& norm_weight,
    double epsilon) {
  if (!norm_weight.defined()) return fp8_weight_gradient(parameter, weight, gradient, rows.sum);
  if (weight.recipe == Fp8::rows) {
    return fp8_weight_gradient(
        parameter, weight, gradient.encoded.columns,
        encode_normed_again(
            rows.sum, norm_weight_like(norm_weight, rows.sum), rows.scale, gradient.encoded));
  }
  const auto again = norm_rows(rows.sum, {}, norm_weight, epsilon);
  return fp8_weight_gradient(parameter, weight, gradient, again.y);
}

}  // namespace sherd
