// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace sherd {

/// How many random numbers the graph that is being captured has drawn from the device's default
/// generator so far: a replay draws from where the generator stands then, plus this.
uint64_t random_offset_in_graph(c10::Device device);
/// What is captured next draws from there.
void set_random_offset_in_graph(c10::Device device, uint64_t offset);

}  // namespace sherd
