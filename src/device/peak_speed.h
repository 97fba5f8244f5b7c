// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace sherd {

/// How many TFLOP/s this rank's device makes of large products in a dtype, measured for a moment:
/// what a step's speed is a share of. All ranks at the same time, where they share the device.
double peak_matmul_tflops(c10::Device device, c10::ScalarType dtype);

}  // namespace sherd
