// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/flight/flight_ring.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// Writes the operations of one communicator to the flight recorder. One thread at a time.
class FlightLine {
 public:
  /// Adds an operation that is issued now; returns its entry. `ranks`: world ranks of the
  /// communicator's members; `number`: equal for all of them. `counted`: all members make it, in
  /// one order.
  uint64_t add(
      const Communicator& communicator,
      std::span<const int64_t> ranks,
      int64_t number,
      Collective kind,
      int64_t bytes,
      bool counted = true);

 private:
  FlightRing* ring_ = nullptr;  // in which the name is
  uint32_t name_ = 0;
  int32_t count_ = 0;
};

/// Returns the bytes of the larger sides of transfers, or of tensors.
int64_t bytes_of(std::span<const Transfer> transfers);
int64_t bytes_of(std::span<const at::Tensor> tensors);

}  // namespace sherd
