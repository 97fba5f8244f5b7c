// SPDX-License-Identifier: Apache-2.0
#include "shard/autocast_state.h"

#include <ATen/autocast_mode.h>

#include "kernels/meta_target.h"

namespace sherd {

namespace autocast = at::autocast;

AutocastState autocast_now() {
  return {
      autocast::is_autocast_enabled(at::kCPU), autocast::is_autocast_enabled(at::kCUDA),
      autocast::get_autocast_dtype(at::kCPU), autocast::get_autocast_dtype(at::kCUDA),
      autocast::is_autocast_cache_enabled()};
}

void restore(const AutocastState& state) {
  autocast::set_autocast_enabled(at::kCPU, state.cpu);
  autocast::set_autocast_enabled(at::kCUDA, state.cuda);
  autocast::set_autocast_dtype(at::kCPU, state.cpu_dtype);
  autocast::set_autocast_dtype(at::kCUDA, state.cuda_dtype);
  autocast::set_autocast_cache_enabled(state.cache);
}

void autocast_to(c10::ScalarType dtype, c10::DeviceType given) {
  const auto device = given == c10::DeviceType::Meta ? meta_target() : given;
  autocast::set_autocast_enabled(device, true);
  autocast::set_autocast_dtype(device, dtype);
  autocast_without_cache();
}

void autocast_without_cache() {
  autocast::set_autocast_cache_enabled(false);
}

}  // namespace sherd
