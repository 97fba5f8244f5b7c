// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// Returns the address of a tensor's first byte.
inline const char* begin_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

/// Returns whether two contiguous tensors share a byte.
inline bool overlap(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() > 0 && b.nbytes() > 0 && begin_of(a) < begin_of(b) + b.nbytes() &&
         begin_of(b) < begin_of(a) + a.nbytes();
}

}  // namespace sherd
