// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// Sums of rows that are somewhere else: the way back from experts to tokens.
struct RowSums {
  at::Tensor rows{};     ///< [R, D], dense
  at::Tensor indices{};  ///< [T, K]: the rows of each sum, int32
  at::Tensor summand{};  ///< [T, D], dense, or undefined: what is added; may be the result itself
  at::Tensor result{};   ///< [T, D], dense, in the summand's dtype
};
/// Sets result[t] to summand[t] + Σ rows[indices[t, k]], summed in fp32 (fp64 where one side is) in
/// the order of k and rounded once. One pass on the current stream. No effect on the meta device.
void sum_rows(const RowSums& work);

// In CUDA memory.
void sum_rows_on_cuda(const RowSums& work);

}  // namespace sherd
