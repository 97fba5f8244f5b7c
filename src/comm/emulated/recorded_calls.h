// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/comm/communicator.h"
#include "sherd/export.h"
#include "sherd/plan/network.h"

namespace sherd {

/// One call of an emulated communicator's operation.
struct RecordedCall {
  Collective collective{};   ///< kind of operation
  std::string communicator;  ///< name of the communicator
  int64_t ranks = 0;         ///< size of the communicator
  int64_t bytes = 0;         ///< full buffers: gathered outputs, inputs of reductions, messages
  c10::ScalarType dtype{};   ///< of its tensors
  friend bool operator==(const RecordedCall&, const RecordedCall&) = default;
};

/// Returns the calls of all communicators of an emulated world, in call order; with `forget` it
/// also clears the record. Any thread. Throws for a communicator that is not emulated.
SHERD_API std::vector<RecordedCall> recorded_calls(Communicator& communicator, bool forget = false);

}  // namespace sherd
