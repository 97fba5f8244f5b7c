// SPDX-License-Identifier: Apache-2.0
#include "nn/autocast.h"

#include <ATen/autocast_mode.h>

#include "kernels/meta_target.h"

namespace sherd {
namespace {

/// The meta device autocasts as the one that it stands for.
c10::DeviceType casting_device(const at::Tensor& x) {
  return x.is_meta() ? meta_target() : x.device().type();
}

}  // namespace

at::ScalarType product_dtype(const at::Tensor& x) {
  const auto device = casting_device(x);
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : x.scalar_type();
}

WithoutAutocast::WithoutAutocast(const at::Tensor& x) {
  guard_.emplace(at::autocast::get_autocast_dispatch_key_from_device_type(casting_device(x)));
}

}  // namespace sherd
