// SPDX-License-Identifier: Apache-2.0
#include "configuration/fewer_ranks.h"

#include <gtest/gtest.h>

namespace sherd {
namespace {

using Number = std::optional<int64_t>;

TEST(FewerRanksTest, MakeMoreMicroBatchesOfTheSameSamples) {
  Configuration run;
  EXPECT_EQ(micro_batches_for(run, 4, 4), Number(1));
  EXPECT_EQ(micro_batches_for(run, 4, 2), Number(2));
  EXPECT_EQ(micro_batches_for(run, 4, 1), Number(4));
  EXPECT_EQ(micro_batches_for(run, 4, 3), Number()) << "4 samples a step";
  run.data.micro_batches = 6;
  run.data.batch = 5;  // stays as it is, for the memory
  EXPECT_EQ(micro_batches_for(run, 4, 3), Number(8));
}

TEST(FewerRanksTest, AreAsManyAsTheSamplesAndAxesAllow) {
  Configuration run;
  EXPECT_EQ(fewer_ranks(run, 4, 4, 1), Number(2));
  EXPECT_EQ(fewer_ranks(run, 4, 2, 1), Number(1)) << "after a second death";
  EXPECT_EQ(fewer_ranks(run, 4, 4, 3), Number());
  run.data.micro_batches = 3;
  EXPECT_EQ(fewer_ranks(run, 4, 4, 1), Number(3));
  run.shard.outer = 2;
  EXPECT_EQ(fewer_ranks(run, 4, 4, 1), Number(2)) << "two groups";
  EXPECT_EQ(fewer_ranks(run, 4, 2, 1), Number());
  run.shard.outer = 1;
  run.parallel.tp = 2;
  run.data.micro_batches = 2;
  EXPECT_EQ(micro_batches_for(run, 8, 4), Number(4));
  EXPECT_EQ(micro_batches_for(run, 8, 1), Number()) << "two ranks share each sequence";
  EXPECT_EQ(fewer_ranks(run, 8, 8, 2), Number(4)) << "not 6: 8 micro-batches for 3";
}

}  // namespace
}  // namespace sherd
