// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "sherd/export.h"
#include "sherd/shard/boundary.h"

namespace sherd {

/// Returns this thread's autocast settings.
SHERD_API AutocastState autocast_now();
SHERD_API void restore(const AutocastState& state);
/// Enables autocast for a device on this thread, without its cache.
void autocast_to(c10::ScalarType dtype, c10::DeviceType device);
/// Turns off autocast's cache of cast weights on this thread: they would outlive the gathered
/// parameters, take as much memory as the whole model, and be old after an update.
void autocast_without_cache();

}  // namespace sherd
