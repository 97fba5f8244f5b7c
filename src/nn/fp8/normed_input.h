// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/fp8/fused.h"
#include "nn/fp8/products.h"
#include "nn/normed_rows.h"
#include "nn/shared_rows.h"

namespace sherd {

/// The input of an fp8 product that is the RMSNorm of rows [T, D], or the rows themselves. The
/// backward makes it again from the rows.
struct NormedInput {
  NormedRows rows;    ///< sum and scale; y only if the recipe can't encode it at once
  Fp8Matrix encoded;  ///< for the forward

  /// Computes it. Without a norm weight it is x.
  static NormedInput make(
      const Fp8Weight& weight,
      const at::Tensor& x,
      const at::Tensor& residual,
      const at::Tensor& norm_weight,
      double epsilon);
};

/// Returns an encoded input with the rows of all ranks, in fp8 with their scales. `sizes` are those
/// of this rank's rows, [.., D]; both matrices have all dims but the last as one.
Fp8Matrix gather_encoded(
    const SharedRows& ranks, const Fp8Matrix& mine, const std::vector<int64_t>& sizes);

/// Returns the sums and scales of the rows of all ranks, for the weight's gradient.
NormedRows gather_normed(
    const SharedRows& ranks, const NormedRows& mine, const std::vector<int64_t>& sizes);

/// The gradient of a product's weight, from the sum and scale of a NormedInput. As
/// fp8_weight_gradient().
at::Tensor normed_weight_gradient(
    const at::Tensor& parameter,
    const Fp8Weight& weight,
    const Fp8ProductGradient& gradient,
    const NormedRows& rows,
    const at::Tensor& norm_weight,
    double epsilon);

}  // namespace sherd
