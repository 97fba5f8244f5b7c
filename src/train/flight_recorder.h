// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "configuration/configuration.h"
#include "sherd/comm/world.h"

namespace sherd {

/// Opens this rank's flight recorder in train.out/flight, if it is on; what an earlier process left
/// there moves to train.out/flight/before. Returns a warning if that fails, otherwise an empty
/// text: a run goes on without a recorder. Collective; blocks. Only a rank that may write to
/// train.out calls it.
std::string open_flight_recorder(const Configuration& configuration, const World& world);
/// Says from which step on a run goes on.
void begin_flight_recording(int64_t steps_before);
/// Runs a function and writes to the recorder how it ended.
void record_end(const std::function<void()>& run);

}  // namespace sherd
