// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "train/stop_signals.h"
#include "train/train.h"

namespace sherd {
namespace {

/// A terminal of so many columns, and what was written to it.
struct Screen {
  int64_t columns = 0;
  std::ostringstream out{};
  Progress progress{10, [this] { return columns; }, out};

  std::string take() {
    auto text = out.str();
    out.str("");
    return text;
  }
};

const std::vector<LineField> kFields{{"step 3", 0}, {"loss 2", 1}, {"norm 1", 3}, {"8 µs left", 2}};

TEST(Progress, WithoutATerminalEveryStepIsALine) {
  Screen screen{.columns = 0};
  screen.progress.show(3, kFields);
  screen.progress.say("saved");
  EXPECT_EQ(screen.take(), "step 3  loss 2  norm 1  8 µs left\nsaved\n");
}

TEST(Progress, OnATerminalABarGrowsInOneLineBelowLinesThatStay) {
  Screen screen{.columns = 120};
  screen.progress.show(3, kFields);
  const std::string bar = "[######..............] step 3  loss 2  norm 1  8 µs left";
  EXPECT_EQ(screen.take(), "\r\033[K" + bar);
  screen.progress.say("saved out/step-3");
  EXPECT_EQ(screen.take(), "\r\033[Ksaved out/step-3\n" + bar);
  screen.progress.show(10, {{"done", 0}});
  EXPECT_EQ(screen.take(), "\r\033[K[####################] done\n");
  screen.progress.leave_bar();
  EXPECT_EQ(screen.take(), "");  // it is a line already
}

TEST(Progress, ANarrowTerminalHasTheImportantFieldsAndNeverHalfACharacter) {
  Screen screen{.columns = 41};
  screen.progress.show(3, kFields);
  EXPECT_EQ(screen.take(), "\r\033[K[###.......] step 3  loss 2  8 µs left");
  screen.columns = 40;
  screen.progress.show(3, kFields);
  EXPECT_EQ(screen.take(), "\r\033[Kstep 3  loss 2  norm 1  8 µs left");
  EXPECT_EQ(fitted({{"8 µs", 0}}, 3), "8 µ");
  EXPECT_EQ(fitted({{"8 µs", 0}}, 2), "8 ");
}

TEST(Progress, ABarThatATerminalHasWrappedIsRemovedWhole) {
  Screen screen{.columns = 120};
  screen.progress.show(3, kFields);
  screen.take();
  screen.columns = 20;  // 56 characters are three lines now
  screen.progress.show(4, kFields);
  EXPECT_EQ(screen.take(), "\r\033[2A\033[Jstep 3  loss 2");
  screen.progress.leave_bar();
  EXPECT_EQ(screen.take(), "\n");
}

TEST(Progress, TheFieldsOfAStepFitEightyAndAHundredAndFortyColumns) {
  Screen screen{.columns = 80};
  StepMetrics metrics{
      .step = 1234,
      .loss = 2.3456,
      .grad_norm = 1.25,
      .lr = 3e-4,
      .tokens_per_second = 123456,
      .tflops = 586,
      .planned_bytes = int64_t{50} << 30,
      .peak_bytes = int64_t{46} << 30};
  const auto fields = step_fields(metrics, 10000, 611, 7200);
  screen.progress.show(1, fields);
  const auto narrow = screen.take();
  EXPECT_EQ(
      narrow,
      "\r\033[K[#.........] step  1234/10000  loss 2.3456  123456 tokens/s  2 h 00 min left");
  screen.columns = 140;
  screen.progress.show(1, fields);
  EXPECT_EQ(
      screen.take(),
      "\r\033[K[##..................] step  1234/10000  loss 2.3456  norm 1.250  lr 3.00e-04  "
      "123456 tokens/s  586 TFLOP/s (96 %)  2 h 00 min left");
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
