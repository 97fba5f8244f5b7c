// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "sherd/comm/communicator.h"

namespace sherd {

// Arguments of a Communicator's operations as c10d and NCCL take them.

/// Returns whether NCCL has a type for the dtype, so that it can reduce it.
bool nccl_knows(c10::ScalarType dtype);

/// Returns a flat view, as bytes if NCCL has no type for the dtype: for operations that only move
/// it.
at::Tensor movable(const at::Tensor& tensor);

/// The transfers of a grouped collective, without those that are empty.
struct TransferSides {
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> inputs;
};
/// Splits transfers into outputs and inputs, as they are or made movable().
TransferSides split_sides(std::span<const Transfer> transfers, bool make_movable);

/// Returns the operation that NCCL does for a reduction. After that of a scaled sum, call
/// scale_sums().
c10d::ReduceOp reduce_op(Reduction reduction);

/// Multiplies results by the factor of a scaled sum, on the current stream. c10d's own way,
/// ncclRedOpCreatePreMulSum, gave wrong values for bf16, for several tensors at once and on one
/// rank (torch 2.11, NCCL 2.28.9), and NCCL's kernels for symmetric memory know only the sum.
void scale_sums(const std::vector<at::Tensor>& tensors, Reduction reduction);

}  // namespace sherd
