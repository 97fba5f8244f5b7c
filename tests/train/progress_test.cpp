// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <gtest/gtest.h>

#include <csignal>

#include "train/stop_signals.h"
#include "train/train.h"

namespace sherd {
namespace {

TEST(Progress, WithoutATerminalEveryStepIsALine) {
  const Progress progress(10, 0);
  EXPECT_EQ(progress.text(3, "step 3"), "step 3\n");
}

TEST(Progress, OnATerminalABarGrowsInOneLineThatFits) {
  const Progress progress(10, 40);
  EXPECT_EQ(progress.text(3, "step 3"), "\r\033[K[######..............] step 3");
  EXPECT_EQ(progress.text(10, "done"), "\r\033[K[####################] done\n");
  EXPECT_EQ(progress.text(3, std::string(100, 'x')).size(), 4 + 39u);
}

TEST(StopRequests, SignalsWithinSecondsAreOneRequestAndALaterOneIsAnother) {
  using Kind = StopRequests::Kind;
  StopRequests requests;
  EXPECT_EQ(requests.note(1000), Kind::first);
  EXPECT_EQ(requests.note(1000), Kind::repeat);
  EXPECT_EQ(requests.note(1000 + StopRequests::kRepeats - 0.1), Kind::repeat);
  EXPECT_EQ(requests.note(1000 + StopRequests::kRepeats), Kind::another);
}

TEST(StopSignals, TwoSignalsWithinMomentsAskOnce) {
  const StopSignals signals;
  EXPECT_EQ(signals.asked(), 0);
  std::raise(SIGTERM);
  std::raise(SIGUSR1);
  EXPECT_NE(signals.asked(), 0);
}

}  // namespace
}  // namespace sherd
