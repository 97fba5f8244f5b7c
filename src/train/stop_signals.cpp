// SPDX-License-Identifier: Apache-2.0
#include "train/stop_signals.h"

#include <unistd.h>

#include <ctime>

#include "comm/flight/flight_ring.h"
#include "train/train.h"

namespace sherd {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGUSR1};
volatile std::sig_atomic_t signalled = 0;
StopRequests requests;

void note(int signal) {
  if (requests.note(rising_seconds()) == StopRequests::Kind::another) _exit(128 + signal);
  signalled = signal;
  FlightRing::note_stop(signal);
}

}  // namespace

double rising_seconds() {
  struct timespec now {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

StopSignals::StopSignals() {
  signalled = 0;
  requests = {};
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
