// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/network.h"

namespace sherd {

/// One process as rank `rank` of a world of `size`. A gather fills every rank's part from this
/// rank's shard, a reduction returns this rank's part of its input (times the factor of a scaled
/// sum).
struct Emulation {
  int64_t rank = 0;
  int64_t size = 1;  ///< 1 to 65,536
  c10::Device device = c10::kCPU;
  /// If given, each collective takes the time it would take there: on CPU its Work is done no
  /// sooner, on CUDA its stream is busy that long.
  std::optional<Network> network{};
  /// CUDA: how many SMs are held for that time.
  int sms = 8;
};

/// A call that an emulated communicator saw.
struct RecordedCall {
  Collective collective{};
  std::string communicator;
  int64_t ranks = 0;
  int64_t bytes = 0;  ///< of the full buffers: gathered outputs, reductions' inputs, messages
  c10::ScalarType dtype{};
  friend bool operator==(const RecordedCall&, const RecordedCall&) = default;
};

class Communicator;

/// The calls of an emulated communicator and of all split from its world, in order; forgets them if
/// asked. Throws for another kind of communicator.
SHERD_API std::vector<RecordedCall> recorded_calls(Communicator& communicator, bool forget = false);

}  // namespace sherd
