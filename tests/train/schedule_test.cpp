// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sherd
