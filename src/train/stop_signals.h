// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>

namespace sherd {

/// A scope in which SIGINT, SIGTERM and SIGUSR1 (which mpirun passes on) only request a stop;
/// another request (see StopRequests) ends the process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the signal that arrived, or 0.
  int asked() const;

 private:
  std::array<struct sigaction, 3> before_{};
};

}  // namespace sherd
