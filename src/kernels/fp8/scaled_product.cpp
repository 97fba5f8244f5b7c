// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/scaled_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>

#include "kernels/meta_target.h"

namespace sherd {

void scaled_product(const ScaledProduct& product) {
  const auto& [a, b, out, summand, fast] = product;
  TORCH_INTERNAL_ASSERT(
      a.values.size(1) == b.values.size(1) && out.size(0) == a.values.size(0) &&
          out.size(1) == b.values.size(0) && out.is_contiguous(),
      "[kernels.fp8] a product of ", a.values.sizes(), " and ", b.values.sizes(), " to ",
      out.sizes());
  if (out.is_meta()) {
    for (const auto* matrix : {&a, &b}) {  // a copy of scales, as scaled_product_on_cuda() makes
      if (!needs_device_tables(out.device()) || matrix->scaling != Scaling::block) continue;
      const int64_t columns = padded(matrix->scales.size(1), 4);
      if (columns == matrix->scales.size(1)) continue;
      at::empty({matrix->scales.size(0), columns}, matrix->scales.options());
    }
    return;
  }
  if (out.is_cuda()) return scaled_product_on_cuda(product);
  const auto wide = [](const Fp8Matrix& matrix) {
    if (matrix.scales.defined()) return decode(matrix, at::kFloat);
    return matrix.values.to(at::kFloat);
  };
  auto sum = at::mm(wide(a), wide(b).t());
  if (summand.defined()) sum += summand;
  out.copy_(sum);
}

}  // namespace sherd
