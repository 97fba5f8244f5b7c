// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_arguments.h"

namespace sherd {

bool nccl_knows(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong: return true;
    default: return false;
  }
}

at::Tensor movable(const at::Tensor& tensor) {
  auto flat = tensor.view({-1});
  return nccl_knows(tensor.scalar_type()) ? flat : flat.view(at::kByte);
}

TransferSides split_sides(std::span<const Transfer> transfers, bool make_movable) {
  TransferSides sides;
  for (const auto& [output, input] : transfers) {
    if (output.numel() == 0) continue;
    sides.outputs.push_back(make_movable ? movable(output) : output);
    sides.inputs.push_back(make_movable ? movable(input) : input);
  }
  return sides;
}

c10d::ReduceOp reduce_op(Reduction reduction) {
  switch (reduction.kind) {
    case Reduction::Kind::sum: return c10d::ReduceOp::SUM;
    case Reduction::Kind::mean: return c10d::ReduceOp::AVG;
    case Reduction::Kind::max: return c10d::ReduceOp::MAX;
    case Reduction::Kind::scaled_sum: return c10d::ReduceOp::SUM;  // see scale_sums()
  }
  return c10d::ReduceOp::SUM;
}

void scale_sums(const std::vector<at::Tensor>& tensors, Reduction reduction) {
  if (reduction.kind != Reduction::Kind::scaled_sum) return;
  for (const auto& tensor : tensors) tensor.mul_(reduction.factor);
}

}  // namespace sherd
