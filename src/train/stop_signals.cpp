// SPDX-License-Identifier: Apache-2.0
#include "train/stop_signals.h"

#include <unistd.h>

namespace sherd {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1};
volatile std::sig_atomic_t signalled = 0;

void note(int signal) {
  if (signalled != 0) _exit(128 + signal);
  signalled = signal;
}

}  // namespace

StopSignals::StopSignals() {
  signalled = 0;
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int StopSignals::asked() const {
  return signalled;
}

}  // namespace sherd
