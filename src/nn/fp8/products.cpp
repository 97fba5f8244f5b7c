// SPDX-License-Identifier: Apache-2.0
#include "nn/fp8/products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "kernels/fp8/scaled_product.h"
#include "kernels/meta_target.h"

namespace sherd {
namespace {

/// An operand of an emulated product: decoded, on a GPU to 16 bits, which is exact.
at::Tensor emulated(const Fp8Matrix& matrix) {
  const bool gpu = matrix.values.is_cuda() ||
                   (matrix.values.is_meta() && needs_device_tables(matrix.values.device()));
  return decode(matrix, gpu ? at::kBFloat16 : at::kFloat);
}

Scaling row_scaling(Fp8 recipe) {
  if (has_row_scales(recipe)) return Scaling::row;
  return recipe == Fp8::blocks ? Scaling::tile : Scaling::mx_row;
}

Scaling column_scaling(Fp8 recipe) {
  return recipe == Fp8::blocks ? Scaling::tile : Scaling::mx_column;
}

at::Tensor multiplied(
    const Fp8Matrix& a,
    const Fp8Matrix& b,
    c10::ScalarType dtype,
    const at::Tensor& summand,
    bool fast) {
  auto out = at::empty({a.values.size(0), b.values.size(0)}, a.values.options().dtype(dtype));
  scaled_product({a, b, out, summand, fast});
  return out;
}

/// Calls write(target), which returns nothing, for the parameter's buffer or for one of its own.
template <class Write>
at::Tensor with_target(const at::Tensor& parameter, const Fp8Weight& weight, Write write) {
  if (const auto target = gradient_target(parameter)) {
    write(*target);
    return {};
  }
  const GradientTarget own{
      at::empty(parameter.sizes(), weight.weight.values.options().dtype(at::kFloat)), true};
  write(own);
  return own.buffer.to(weight.compute);
}

void write_scaled(const GradientTarget& target, const Fp8Matrix& a, const Fp8Matrix& b) {
  scaled_product({a, b, target.buffer, target.overwrite ? at::Tensor() : target.buffer});
}

}  // namespace

Fp8Matrix fp8_input(const Fp8Weight& weight, const at::Tensor& x) {
  return encode_rows(x, row_scaling(weight.recipe));
}

at::Tensor fp8_product(const Fp8Weight& weight, const Fp8Matrix& input, const at::Tensor& summand) {
  if (weight.recipe != Fp8::mx) {
    // With one scale for each token, what these sums lose is below the rounding of the products
    // (docs/numerics.md).
    const bool fast = has_row_scales(weight.recipe);
    return multiplied(input, weight.weight, weight.compute, summand, fast);
  }
  auto result = at::mm(emulated(input), emulated(weight.weight).t()).to(weight.compute);
  return summand.defined() ? result.add_(summand) : result;
}

Fp8ProductGradient fp8_gradient(
    const Fp8Weight& weight, const at::Tensor& gradient, const at::Tensor& input_scales) {
  Fp8ProductGradient result;
  if (weight.recipe != Fp8::rows) result.wide = gradient.to(weight.compute);
  if (has_row_scales(weight.recipe)) {
    result.encoded = encode_gradient(gradient, input_scales);
  } else {
    result.encoded.rows = encode_rows(gradient, row_scaling(weight.recipe));
  }
  return result;
}

at::Tensor fp8_input_gradient(const Fp8Weight& weight, const Fp8Gradient& gradient) {
  TORCH_INTERNAL_ASSERT(weight.backward.values.defined(), "[nn] a product's backward in a forward");
  if (weight.recipe != Fp8::mx) {
    return multiplied(gradient.rows, weight.backward, weight.compute, {}, /*fast=*/false);
  }
  return at::mm(emulated(gradient.rows), emulated(weight.backward)).to(weight.compute);
}

at::Tensor fp8_weight_gradient(
    const at::Tensor& parameter,
    const Fp8Weight& weight,
    const Fp8ProductGradient& gradient,
    const at::Tensor& input) {
  if (weight.recipe == Fp8::rows) {
    return fp8_weight_gradient(
        parameter, weight, gradient.encoded.columns, encode_input_again(input, gradient.encoded));
  }
  return with_target(parameter, weight, [&](const GradientTarget& target) {
    if (weight.recipe == Fp8::rows_wgrad16) {
      return write_weight_gradient(target, gradient.wide, input.to(gradient.wide.scalar_type()));
    }
    const auto scaling = column_scaling(weight.recipe);
    const auto columns = encode_columns(gradient.wide, scaling);
    const auto again = encode_columns(input, scaling);
    if (weight.recipe == Fp8::blocks) return write_scaled(target, columns, again);
    write_weight_gradient(target, emulated(columns), emulated(again));
  });
}

at::Tensor fp8_weight_gradient(
    const at::Tensor& parameter,
    const Fp8Weight& weight,
    const Fp8Matrix& gradient_columns,
    const Fp8Matrix& input_again) {
  return with_target(parameter, weight, [&](const GradientTarget& target) {
    write_scaled(target, gradient_columns, input_again);
  });
}

}  // namespace sherd
