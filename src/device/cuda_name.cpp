// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include "device/device_name.h"

namespace sherd {

std::string gpu_name(c10::Device device) {
  if (!device.is_cuda()) return "";
  cudaDeviceProp properties{};
  const int index = device.has_index() ? device.index() : c10::cuda::current_device();
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return properties.name;
}

}  // namespace sherd
