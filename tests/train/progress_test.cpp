// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sherd
