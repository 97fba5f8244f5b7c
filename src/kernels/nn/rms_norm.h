// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// y = sum · scale · weight with sum = x + residual and, for each row, scale = 1 / √(mean(sum²) +
/// ε). Rows of x, residual, sum and y are dense and of one dtype (of 16 bits or more), the
/// weight's.
struct RmsNormForward {
  at::Tensor x{};         ///< [rows, dim]
  at::Tensor residual{};  ///< undefined: x itself is normed, and `sum` is not written
  at::Tensor weight{};    ///< [dim]
  double epsilon = 0;
  at::Tensor sum{};
  at::Tensor y{};
  at::Tensor scale{};  ///< [rows], fp32 (fp64 with fp64)
};

struct RmsNormBackward {
  at::Tensor y_gradient{};
  at::Tensor sum_gradient{};  ///< what reaches the sum by other ways; may be undefined
  at::Tensor sum{};
  at::Tensor weight{};
  at::Tensor scale{};
  at::Tensor gradient{};         ///< out: of the sum, both ways together
  at::Tensor weight_gradient{};  ///< out: [dim] of any such dtype; undefined: not wanted
  bool add = false;              ///< to what the weight's gradient already is
};

/// One pass over the rows, on the current stream. fp32 math, rounded once.
void rms_norm_forward(const RmsNormForward& work);
/// One pass too; on CUDA the weight's gradient is first summed per block in fp32, in a workspace
/// of [blocks, dim], then over blocks: the same digits every time.
void rms_norm_backward(const RmsNormBackward& work);

// In CUDA memory.
void rms_norm_forward_on_cuda(const RmsNormForward& work);
void rms_norm_backward_on_cuda(const RmsNormBackward& work);

}  // namespace sherd
