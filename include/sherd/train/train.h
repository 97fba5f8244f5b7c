// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "sherd/export.h"
#include "sherd/train/configuration.h"

namespace sherd {

/// Trains as the configuration says, as this process's rank of the world that started it: see
/// World::from_environment. Collective. Writes the results to train.out (rank 0), and shows
/// progress on standard output (rank 0).
SHERD_API void train(const Configuration& configuration);

/// Tells requests to stop apart. Schedulers and launchers often signal a process twice within
/// moments: repeats within kRepeats seconds of the first signal belong to the same request.
/// note() may be called in a signal handler.
class StopRequests {
 public:
  static constexpr double kRepeats = 5;
  enum class Kind : uint8_t { first, repeat, another };

  /// Notes a signal that arrived at `seconds` of a clock that only rises.
  Kind note(double seconds) {
    if (!asked_) {
      first_ = seconds;
      asked_ = true;
      return Kind::first;
    }
    return seconds - first_ < kRepeats ? Kind::repeat : Kind::another;
  }

 private:
  volatile bool asked_ = false;
  volatile double first_ = 0;
};

/// Seconds of a clock that only rises; may be called in a signal handler.
SHERD_API double rising_seconds();

/// The width of the terminal that progress is shown on; 0: there is none, and lines are plain. Who
/// starts ranks whose output goes through a pipe tells them in SHERD_TERMINAL.
SHERD_API int64_t terminal_columns();

}  // namespace sherd
