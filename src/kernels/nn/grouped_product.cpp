// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/grouped_product.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include "kernels/meta_target.h"

namespace sherd {
namespace {

/// Returns whether torch's grouped products take it: CUDA memory, and not fp64.
bool by_torch(const at::Tensor& operand) {
  return operand.is_cuda() && operand.scalar_type() != at::kDouble;
}

/// Calls body(group, first row, number of rows) for each group. Waits for the ends.
template <class Body>
void each_group(const at::Tensor& end_E, Body body) {
  const auto on_host = end_E.cpu();
  const auto* ends = on_host.const_data_ptr<int32_t>();
  int64_t first = 0;
  for (int64_t group = 0; group < end_E.numel(); ++group) {
    const int64_t end = ends[group];
    body(group, first, end - first);
    first = end;
  }
}

/// Torch's kernels load 16 bytes at a time.
void check_row_size(int64_t size, const at::Tensor& operand) {
  TORCH_CHECK_VALUE(
      size * operand.element_size() % 16 == 0, "[kernels] a grouped product with rows of ", size,
      " elements of ", operand.scalar_type(),
      ": on a GPU rows must be multiples of 16 bytes; use sizes that are multiples of 8");
}

at::Tensor row_products(
    const at::Tensor& rows, const at::Tensor& right_EKM, const at::Tensor& end_E) {
  if (rows.size(0) > 0 && by_torch(rows)) {
    check_row_size(right_EKM.size(1), rows);
    check_row_size(right_EKM.size(2), rows);
    return at::_grouped_mm(rows, right_EKM, end_E);
  }
  auto result = at::empty({rows.size(0), right_EKM.size(2)}, rows.options());
  if (rows.is_meta()) return result;
  each_group(end_E, [&](int64_t group, int64_t first, int64_t count) {
    if (count == 0) return;
    auto part = result.narrow(0, first, count);
    at::mm_out(part, rows.narrow(0, first, count), right_EKM[group]);
  });
  return result;
}

}  // namespace

at::Tensor grouped_product(
    const at::Tensor& rows_RK, const at::Tensor& matrices_EMK, const at::Tensor& end_E) {
  return row_products(rows_RK, matrices_EMK.transpose(1, 2), end_E);
}

at::Tensor grouped_input_gradient(
    const at::Tensor& gradient_RM, const at::Tensor& matrices_EMK, const at::Tensor& end_E) {
  return row_products(gradient_RM, matrices_EMK, end_E);
}

void grouped_weight_gradient(const GroupedWeightGradient& work) {
  const auto& [gradient, rows, ends, target, add] = work;
  if (rows.size(0) == 0 && !target.is_meta()) {
    if (!add) target.zero_();
    return;
  }
  if (by_torch(gradient)) {
    check_row_size(gradient.size(1), gradient);
    check_row_size(rows.size(1), rows);
    const auto sums = at::_grouped_mm(gradient.t(), rows, ends);
    if (add) {
      target.add_(sums);
    } else {
      target.copy_(sums);
    }
    return;
  }
  if (target.is_meta()) {
    if (needs_device_tables(target.device())) at::empty(target.sizes(), rows.options());
    return;
  }
  const auto dtype = target.scalar_type();
  each_group(ends, [&](int64_t group, int64_t first, int64_t count) {
    auto sums = target[group];
    if (count > 0) {
      const auto left = gradient.narrow(0, first, count).to(dtype).t();
      const auto right = rows.narrow(0, first, count).to(dtype);
      at::addmm_out(sums, sums, left, right, /*beta=*/add ? 1 : 0, /*alpha=*/1);
    } else if (!add) {
      sums.zero_();
    }
  });
}

}  // namespace sherd
