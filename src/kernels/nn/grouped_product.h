// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

// Products of groups of rows, each group with a matrix of its own. E matrices have R rows together,
// sorted by group: `end_E` (int32, where the rows are) holds one past each group's last row, and a
// group may have none. All operands of a product are dense and of one dtype, floating point of 16
// bits or more; sums are in fp32 (fp64 for fp64), in the same order every time.
//
// All run on the current stream. In CUDA memory these are torch's grouped products: rows must be
// multiples of 16 bytes, and on Hopper and Blackwell they never block for bf16. With other dtypes
// or GPUs, and for fp64, the host waits until it has read `end_E`. On the meta device they allocate
// what they would allocate elsewhere.

/// Returns rows[r] · matrixᵀ of the row's group: [R, K] and [E, M, K] give [R, M].
at::Tensor grouped_product(
    const at::Tensor& rows_RK, const at::Tensor& matrices_EMK, const at::Tensor& end_E);

/// Returns the gradient of the rows, from that of the product: [R, M] and [E, M, K] give [R, K].
at::Tensor grouped_input_gradient(
    const at::Tensor& gradient_RM, const at::Tensor& matrices_EMK, const at::Tensor& end_E);

/// The gradient of the matrices of a grouped product.
struct GroupedWeightGradient {
  at::Tensor gradient;  ///< [R, M], of the product
  at::Tensor rows;      ///< [R, K]
  at::Tensor ends;      ///< [E]
  at::Tensor target;    ///< [E, M, K], dense, of any dtype of 16 bits or more
  /// Adds to the target; where a group has no rows, it stays as it is. Otherwise such a group's
  /// gradient is 0.
  bool add = false;
};
/// Sets target[e] to gradientᵀ · rows of group e, or adds that to it. CPU: sums in the target's
/// dtype. CUDA: torch rounds the sums to the operands' dtype first.
void grouped_weight_gradient(const GroupedWeightGradient& work);

}  // namespace sherd
