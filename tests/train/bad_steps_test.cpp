// SPDX-License-Identifier: Apache-2.0
#include "train/bad_steps.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sherd {
namespace {

/// The section with what is done about bad steps.
TrainSection on_bad_step(const char* what, double bad_norm = 0) {
  TrainSection section;
  section.on_bad_step = what;
  section.bad_norm = bad_norm;
  return section;
}

TEST(BadStepsTest, AreThoseThatAreNotFiniteOrFarAboveTheMean) {
  BadSteps steps(on_bad_step("rewind", 5));
  EXPECT_TRUE(steps.is_bad(NAN));
  EXPECT_TRUE(steps.is_bad(INFINITY));
  for (int64_t i = 0; i < BadSteps::kLeastNorms; ++i) EXPECT_FALSE(steps.is_bad(i == 0 ? 11 : 1));
  EXPECT_FALSE(steps.is_bad(9.9)) << "the mean is 2";
  EXPECT_TRUE(steps.is_bad(100));
  BadSteps without(on_bad_step("rewind"));
  for (int64_t i = 0; i < 20; ++i) EXPECT_FALSE(without.is_bad(i < 19 ? 1 : 1e9));
}

TEST(BadStepsTest, AreSkippedATimeInARowAndNotForEver) {
  BadSteps steps(on_bad_step("skip"));
  for (int round = 0; round < 2; ++round) {
    for (int64_t i = 0; i < BadSteps::kMostInARow; ++i) EXPECT_TRUE(steps.skip());
    EXPECT_FALSE(steps.is_bad(1)) << "a good one between";
  }
  for (int64_t i = 0; i < BadSteps::kMostInARow; ++i) EXPECT_TRUE(steps.skip());
  EXPECT_FALSE(steps.skip());
  EXPECT_EQ(steps.numbers().at("skipped_steps"), 3 * BadSteps::kMostInARow + 1);
}

TEST(BadStepsTest, LeaveOutSamplesAlsoAfterTheStateWasSaved) {
  BadSteps steps(on_bad_step("rewind"));
  EXPECT_TRUE(steps.leave_out({12, 16}, 8));
  EXPECT_TRUE(steps.leave_out({8, 12}, 8));
  EXPECT_TRUE(steps.leave_out({40, 44}, 32)) << "to another checkpoint";
  BadSteps after(on_bad_step("rewind"));
  after.restore(steps.numbers());
  EXPECT_EQ(after.numbers(), steps.numbers());
  for (const auto* each : {&steps, &after}) {
    EXPECT_EQ(each->next_position(4), 4);
    EXPECT_EQ(each->next_position(8), 16) << "one range leads into the next";
    EXPECT_EQ(each->next_position(42), 44) << "with steps of another size";
    EXPECT_EQ(each->next_position(44), 44);
  }
  EXPECT_TRUE(after.leave_out({44, 48}, 32));
  EXPECT_TRUE(after.leave_out({48, 52}, 32));
  EXPECT_FALSE(after.leave_out({52, 56}, 32)) << "the fourth time to one checkpoint";
}

}  // namespace
}  // namespace sherd
