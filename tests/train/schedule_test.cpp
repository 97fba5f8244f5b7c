// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace sherd {
namespace {

OptimSection optim(const std::string& schedule, int64_t warmup) {
  OptimSection section;
  section.lr = 2;
  section.schedule = schedule;
  section.warmup = warmup;
  return section;
}

TEST(Schedule, TheWarmUpRisesToTheLearningRate) {
  for (const char* schedule : {"constant", "linear", "cosine"}) {
    EXPECT_DOUBLE_EQ(lr_of(optim(schedule, 4), 12, 1), 0.5) << schedule;
    EXPECT_DOUBLE_EQ(lr_of(optim(schedule, 4), 12, 4), 2) << schedule;
    EXPECT_DOUBLE_EQ(lr_of(optim(schedule, 4), 12, 5), 2) << schedule;
    EXPECT_DOUBLE_EQ(lr_of(optim(schedule, 0), 12, 1), 2) << schedule;
  }
}

TEST(Schedule, FallsTowardsNothingAfterTheLastStep) {
  EXPECT_DOUBLE_EQ(lr_of(optim("constant", 4), 12, 12), 2);
  EXPECT_DOUBLE_EQ(lr_of(optim("linear", 4), 12, 9), 1);
  EXPECT_DOUBLE_EQ(lr_of(optim("linear", 4), 12, 12), 0.25);
  EXPECT_NEAR(lr_of(optim("cosine", 4), 12, 9), 1, 1e-12);
  EXPECT_NEAR(lr_of(optim("cosine", 4), 12, 7), 2 * 0.853553390593, 1e-9);
  EXPECT_GT(lr_of(optim("cosine", 12), 12, 12), 0);  // nothing but warm-up
}

TEST(Schedule, FallsToMinLr) {
  for (const char* schedule : {"linear", "cosine"}) {
    auto section = optim(schedule, 4);
    section.min_lr = 1;
    EXPECT_DOUBLE_EQ(lr_of(section, 12, 4), 2) << schedule;
    EXPECT_NEAR(lr_of(section, 12, 9), 1.5, 1e-12) << schedule;
    EXPECT_NEAR(lr_of(section, 12, 13), 1, 1e-12) << schedule;
  }
}

TEST(Schedule, WsdIsConstantAndFallsDuringTheLastSteps) {
  auto section = optim("wsd", 4);
  section.decay_steps = 4;
  section.min_lr = 1;
  const std::vector<double> expected{0.5, 1, 1.5, 2, 2, 2, 2, 2, 2, 1.75, 1.5, 1.25};
  for (int64_t step = 1; step <= 12; ++step) {
    EXPECT_DOUBLE_EQ(lr_of(section, 12, step), expected[static_cast<size_t>(step - 1)]) << step;
  }
  section.decay_steps.reset();  // a tenth
  EXPECT_DOUBLE_EQ(lr_of(section, 40, 37), 2);
  EXPECT_DOUBLE_EQ(lr_of(section, 40, 38), 1.75);
  EXPECT_DOUBLE_EQ(lr_of(section, 40, 40), 1.25);
}

TEST(Schedule, AnExtendedRunBeginsItsScheduleAnew) {
  for (const char* schedule : {"constant", "linear", "cosine", "wsd"}) {
    auto section = optim(schedule, 3);
    section.min_lr = 0.5;
    for (int64_t step = 1; step <= 8; ++step) {
      EXPECT_DOUBLE_EQ(lr_of(section, 20, 12 + step, 12), lr_of(section, 8, step)) << schedule;
    }
    EXPECT_DOUBLE_EQ(lr_of(section, 14, 14, 12), 2);  // fewer steps than the warm-up
  }
}

}  // namespace
}  // namespace sherd
