// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace sherd {

// Keeping a stream and some SMs busy for a given time, as a collective on a described network
// would. `clock` is one int64 on the device. Both calls only enqueue work on `stream`, and may be
// captured.

/// Notes the time on the device.
void note_time(const at::Tensor& clock, c10::Stream stream);

/// Holds `sms` SMs until `seconds` after the noted time.
void occupy_until(const at::Tensor& clock, double seconds, int sms, c10::Stream stream);

}  // namespace sherd
