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

/// Settings of an emulated world: one process acts as one rank of many, to try out memory and
/// speed. Nothing is sent. An all-gather fills every rank's part with this rank's shard; a
/// reduction returns this rank's part of its input (times the factor of a scaled sum).
struct Emulation {
  int64_t rank = 0;                ///< index of the rank that this process is
  int64_t size = 1;                ///< number of ranks, 1 to 65,536
  c10::Device device = c10::kCPU;  ///< where its tensors are
  /// If given, each collective takes the time that it would take on this network: on CPU its Work
  /// is not done sooner, on CUDA its stream is busy that long. Default: no extra time.
  std::optional<Network> network{};
  /// CUDA: number of SMs that a collective keeps busy during that time.
  int sms = 8;
};

/// A call of an emulated communicator.
struct RecordedCall {
  Collective collective{};   ///< kind of operation
  std::string communicator;  ///< name of the communicator
  int64_t ranks = 0;         ///< size of the communicator
  int64_t bytes = 0;         ///< full buffers: gathered outputs, inputs of reductions, messages
  c10::ScalarType dtype{};
  friend bool operator==(const RecordedCall&, const RecordedCall&) = default;
};

class Communicator;

/// Returns the calls of all communicators of an emulated world, in order; with `forget` also clears
/// the record. Throws for a communicator that is not emulated.
SHERD_API std::vector<RecordedCall> recorded_calls(Communicator& communicator, bool forget = false);

}  // namespace sherd
