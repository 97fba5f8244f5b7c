// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>

namespace sherd {

/// While it lives, SIGINT, SIGTERM and SIGUSR1 (which mpirun hands on) ask for an end instead of
/// making one; another request (see StopRequests) makes it.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came, or 0.
  int asked() const;

 private:
  std::array<struct sigaction, 3> before_{};
};

}  // namespace sherd
