// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "sherd/export.h"

namespace sherd {

/// Returns the dtype of matrix products with x: the autocast dtype of its device if autocast is
/// enabled there, else its own.
SHERD_API at::ScalarType product_dtype(const at::Tensor& x);

/// A scope in which autocast is disabled on this thread for the device type of x.
class SHERD_API WithoutAutocast {
 public:
  explicit WithoutAutocast(const at::Tensor& x);

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

}  // namespace sherd
