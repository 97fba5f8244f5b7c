// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace sherd {

/// What a model knows of the CUDA graphs of its step.
struct GraphState {
  bool capturing = false;  ///< a capture is under way, on the current stream
  /// Why addresses may not change any more; empty: they may.
  std::string addresses_pinned_by;
  /// Changes when the optimizer's table of work does: graphs have the old one.
  int64_t update_version = 0;
  bool tokens_captured = false;  ///< the capture divides by tokens, which each replay must be given
  bool tokens_given = false;     ///< they were given for the next replay
};

}  // namespace sherd
