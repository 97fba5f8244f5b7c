// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// Gives a tensor the storage, shape, dtype and device of `data` in place: every holder of the
/// tensor sees them. Unlike Tensor::set_data it may leave the meta device.
inline void replace_data(const at::Tensor& tensor, const at::Tensor& data) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

}  // namespace sherd
