// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "configuration/configuration.h"
#include "sherd/export.h"

namespace sherd {

/// Trains as the configuration says. This process is one rank of the world that started it, see
/// World::from_environment. Collective; blocks until training ends. Rank 0 writes the results to
/// train.out and shows progress on standard output.
SHERD_API void train(const Configuration& configuration);

/// Opens what a run reads and creates the folder of its results. Throws what the run would throw
/// on every rank if an input is missing or wrong, or if nothing can be written.
SHERD_API void check_inputs(const Configuration& configuration);

/// Classifies stop signals. Schedulers and launchers often send one twice in a moment: signals
/// within kRepeats seconds of the first belong to the same request. note() may be called in a
/// signal handler.
class StopRequests {
 public:
  static constexpr double kRepeats = 5;  ///< seconds
  enum class Kind : uint8_t { first, repeat, another };

  /// Records a signal that arrived at `seconds` of a monotonic clock, and returns what it is: the
  /// first, a repeat of it, or another request.
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

/// Returns the seconds of a monotonic clock. May be called in a signal handler.
SHERD_API double rising_seconds();

/// Returns the width of the terminal for progress as it is now, in columns; 0: no terminal, print
/// plain lines. The environment variable SHERD_TERMINAL, a number or a terminal's device, overrides
/// it, for ranks whose output goes through a pipe.
SHERD_API int64_t terminal_columns();
/// Returns SHERD_TERMINAL for ranks whose output goes through this process to its terminal.
SHERD_API std::string terminal_for_ranks();

}  // namespace sherd
