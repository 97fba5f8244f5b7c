// SPDX-License-Identifier: Apache-2.0
#include "train/stragglers.h"

#include <gtest/gtest.h>

#include <string>

#include "sherd/comm/world.h"

namespace sherd {
namespace {

/// A rank of an emulated world judges what it is told.
Stragglers judge_of_three() {
  return Stragglers(World::emulated({.rank = 0, .size = 3}));
}

TEST(Stragglers, ARankIsNamedOnceItHasStayedBehind) {
  auto stragglers = judge_of_three();
  for (int step = 1; step < Stragglers::kConfirmations; ++step)
    EXPECT_EQ(stragglers.judge({2, 0.130, 0.100}, step), "");
  const auto text = stragglers.judge({2, 0.130, 0.100}, 5);
  EXPECT_EQ(
      text, "rank 2 on host " + stragglers.hosts()[2] +
                " stays behind: in the last 10 steps it computed 130.0 ms a step, the fastest rank "
                "100.0 ms (30 % more), and all wait for it");
  for (int step = 6; step < 50; ++step)
    EXPECT_EQ(stragglers.judge({2, 0.130, 0.100}, step), "") << "it was named";
}

TEST(Stragglers, ARankThatIsSlowNowAndThenIsNotNamed) {
  auto stragglers = judge_of_three();
  for (int step = 1; step < 100; ++step) {
    const bool behind = step % Stragglers::kConfirmations != 0;
    EXPECT_EQ(stragglers.judge({1, behind ? 0.130 : 0.110, 0.100}, step), "") << step;
  }
  for (int step = 100; step < 200; ++step)
    EXPECT_EQ(stragglers.judge({(step + 1) % 3, 0.130, 0.100}, step), "")
        << "another one each time";
  for (int step = 200; step < 220; ++step)
    EXPECT_EQ(stragglers.judge({1, 0, 0}, step), "") << "nothing is known yet";
}

TEST(Stragglers, ARankIsNamedAgainOnlyMuchLater) {
  auto stragglers = judge_of_three();
  int named = 0;
  for (int step = 1; step <= 3000; ++step) {
    const bool pause = step % 100 == 0;
    named += stragglers.judge({1, pause ? 0.1 : 0.2, 0.1}, step).empty() ? 0 : 1;
  }
  EXPECT_EQ(named, 3);
}

TEST(Stragglers, AMeanIsThatOfTheLastStepsWithoutTheFirst) {
  auto stragglers = judge_of_three();
  for (size_t step = 0; step <= Stragglers::kSteps; ++step) {
    EXPECT_EQ(stragglers.mean(), 0) << step;
    stragglers.begin_step();
    EXPECT_GE(stragglers.end_step(), 0);
  }
  EXPECT_GT(stragglers.mean(), 0);
}

}  // namespace
}  // namespace sherd
