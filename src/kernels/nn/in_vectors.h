// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/meta_target.h"

namespace sherd {

/// Whether kernels of a GPU can read `x` in vectors of 8 numbers in bf16. So can the meta device's
/// if it stands for one: what they allocate is counted.
inline bool in_vectors(const at::Tensor& x) {
  if (x.scalar_type() != at::kBFloat16 || !needs_device_tables(x.device()) || x.numel() == 0) {
    return false;
  }
  const auto strides = x.strides();
  for (const auto stride : strides.slice(0, strides.size() - 1)) {
    if (stride % 8 != 0) return false;
  }
  return strides.back() == 1 && x.size(-1) % 8 == 0 && x.storage_offset() % 8 == 0;
}

}  // namespace sherd
