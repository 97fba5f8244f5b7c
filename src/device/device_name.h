// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace sherd {

/// Returns the name of a GPU's model, such as "NVIDIA H200"; empty for another device or in a build
/// without CUDA.
std::string gpu_name(c10::Device device);
/// Returns the name of a device's model: of a CPU with the number of cores that this process may
/// use.
std::string device_name(c10::Device device);

}  // namespace sherd
