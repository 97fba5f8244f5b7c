// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "sherd/export.h"
#include "sherd/shard/boundary.h"

namespace sherd {

/// Autocasting on this thread, as it is.
SHERD_API AutocastState autocast_now();
SHERD_API void restore(const AutocastState& state);
/// Turns it on for a device. Casts of weights are not kept: they would outlive the gathered
/// parameters, and take as much memory as the whole model.
void autocast_to(c10::ScalarType dtype, c10::DeviceType device);

}  // namespace sherd
