// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/fp8/encode.h"
#include "nn/weight_gradient.h"
#include "shard/fp8_weight.h"

namespace sherd {

// The three products of y[T, M] = x[T, K] · wᵀ with a weight in fp8, by the weight's recipe. All
// run on the current stream; on the meta device they allocate what they would allocate elsewhere.

/// Returns whether inputs and gradients have a scale for each token: then operations before a
/// product can encode their results themselves (kernels/fp8/fused.h).
inline bool has_row_scales(Fp8 recipe) {
  return recipe == Fp8::rows || recipe == Fp8::rows_wgrad16;
}

/// Encodes an input [T, K] for the forward.
Fp8Matrix fp8_input(const Fp8Weight& weight, const at::Tensor& x);

/// Returns the product in the compute dtype. `summand`, in the product's shape and dtype, is added
/// before the result is rounded.
at::Tensor fp8_product(
    const Fp8Weight& weight, const Fp8Matrix& input, const at::Tensor& summand = {});

/// The gradient [T, M] of a product's result, encoded for both products of the backward.
struct Fp8ProductGradient {
  at::Tensor wide;      ///< as it came; undefined if no product needs it
  Fp8Gradient encoded;  ///< rows; columns and bound only with row scales
};
/// `input_scales`: those of the forward's input, with row scales.
Fp8ProductGradient fp8_gradient(
    const Fp8Weight& weight, const at::Tensor& gradient, const at::Tensor& input_scales);

/// Returns the gradient of the input, in the compute dtype.
at::Tensor fp8_input_gradient(const Fp8Weight& weight, const Fp8Gradient& gradient);

/// Writes the weight's gradient to its unit's buffer and returns an undefined tensor, or returns it
/// if the parameter has no buffer now. `input` is the forward's input in 16 bits or more.
at::Tensor fp8_weight_gradient(
    const at::Tensor& parameter,
    const Fp8Weight& weight,
    const Fp8ProductGradient& gradient,
    const at::Tensor& input);
/// The same with Fp8::rows for an input that is encoded already, by encode_input_again() or with an
/// operation.
at::Tensor fp8_weight_gradient(
    const at::Tensor& parameter,
    const Fp8Weight& weight,
    const Fp8Matrix& gradient_columns,
    const Fp8Matrix& input_again);

}  // namespace sherd
