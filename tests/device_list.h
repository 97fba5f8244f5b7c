// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>
#include <torch/cuda.h>

#include <vector>

namespace sherd::testing {

/// The kinds of devices that this machine has.
inline std::vector<c10::DeviceType> devices() {
  std::vector<c10::DeviceType> result{c10::kCPU};
  if (torch::cuda::is_available()) result.push_back(c10::kCUDA);
  return result;
}

}  // namespace sherd::testing
