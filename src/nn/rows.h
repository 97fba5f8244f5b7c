// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// Returns x as a matrix: all dims but the last become one.
inline at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({x.numel() / x.size(-1), x.size(-1)});
}

}  // namespace sherd
