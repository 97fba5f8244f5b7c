// SPDX-License-Identifier: Apache-2.0
#include "shard/program_streams.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace sherd {
namespace {

/// An operation that has failed.
struct Failed final : Work::State {
  void wait() override { throw std::runtime_error("a peer has left"); }
  void synchronize() override { wait(); }
  bool done() override { return true; }
};

Instruction gather_that_signals(int32_t event) {
  return {
      .action = Action::gather,
      .stream = Stream::gather,
      .axis = AxisKind::inner,
      .signals = event};
}

struct ProgramStreamsTest : ::testing::Test {
  void issue(int32_t event, std::shared_ptr<Work::State> state) {
    streams.issue(
        gather_that_signals(event), ProgramStreams::Kind::collective, /*flight_entry=*/0,
        [state = std::move(state)](Communicator::OnStream) { return Work(state); });
  }
  ProgramStreams streams{c10::kCPU, 2};
  static constexpr std::array<int32_t, 1> kFirst{0};
  static constexpr std::array<int32_t, 1> kSecond{1};
};

TEST_F(ProgramStreamsTest, ACollectiveThatFailsWhileTheHostComputesIsAnErrorForThoseThatWaitForIt) {
  EXPECT_THROW(issue(0, std::make_shared<Failed>()), std::runtime_error);
  EXPECT_THROW(streams.wait(kFirst), std::runtime_error);
  EXPECT_THROW(issue(1, nullptr), std::runtime_error);  // behind it on its stream
  EXPECT_THROW(streams.wait(kSecond), std::runtime_error);
  EXPECT_THROW(streams.finish(), std::runtime_error);
}

TEST_F(ProgramStreamsTest, AnInstructionThatCouldNotStartIsStartedLater) {
  bool refuses = true;
  int starts = 0;
  const auto start = [&](Communicator::OnStream) {
    if (refuses) throw std::bad_alloc();
    ++starts;
    return Work();
  };
  EXPECT_THROW(
      streams.issue(gather_that_signals(0), ProgramStreams::Kind::collective, 0, start),
      std::bad_alloc);
  EXPECT_FALSE(starts);
  refuses = false;
  streams.wait(kFirst);
  EXPECT_EQ(starts, 1);
}

}  // namespace
}  // namespace sherd
