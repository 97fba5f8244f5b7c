// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

#include "sherd/export.h"

namespace sherd {

/// What the products of x are made in: its own dtype, or the one that it is autocast to.
SHERD_API at::ScalarType product_dtype(const at::Tensor& x);

/// While it lives, operations on tensors like x are not autocast.
class SHERD_API WithoutAutocast {
 public:
  explicit WithoutAutocast(const at::Tensor& x);

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

}  // namespace sherd
