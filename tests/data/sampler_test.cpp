// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace sherd {
namespace {

/// All samples of the step from a position on, of all micro-batches and ranks in turn.
std::vector<int64_t> step_of(
    const Sampler& sampler, const Sampler::Options& options, int64_t position) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < options.micro_batches; ++i) {
    for (int64_t rank = 0; rank < options.ranks; ++rank) {
      const auto some = sampler.samples(position, i, rank);
      EXPECT_LE(std::ssize(some), options.batch);
      all.insert(all.end(), some.begin(), some.end());
    }
  }
  EXPECT_EQ(std::ssize(all), sampler.samples_from(position));
  return all;
}

TEST(Sampler, AStepTakesTheNextSamplesInOrder) {
  const Sampler::Options options{.samples = 50, .batch = 2, .micro_batches = 3, .ranks = 2};
  const Sampler sampler(options);
  std::vector<int64_t> expected(12);
  std::iota(expected.begin(), expected.end(), 12);
  EXPECT_EQ(step_of(sampler, options, 12), expected);
}

TEST(Sampler, TheLastStepOfAPassIsShortAndThenItBeginsAgain) {
  const Sampler::Options options{.samples = 14, .batch = 2, .micro_batches = 1, .ranks = 4};
  const Sampler sampler(options);
  EXPECT_EQ(step_of(sampler, options, 8), (std::vector<int64_t>{8, 9, 10, 11, 12, 13}));
  EXPECT_TRUE(sampler.samples(8, 0, 3).empty());  // a rank without data
  EXPECT_EQ(step_of(sampler, options, 14).front(), 0);
}

TEST(Sampler, AShuffledPassHasEverySampleOnceInAnOrderOfItsOwn) {
  for (const int64_t samples : {1, 2, 3, 17, 64, 1000, 4097}) {
    const Sampler::Options options{
        .samples = samples, .batch = 3, .micro_batches = 2, .ranks = 2, .shuffle = true, .seed = 7};
    const Sampler sampler(options);
    std::vector<std::vector<int64_t>> passes(2);
    for (int64_t position = 0; position < 2 * samples;) {
      auto& pass = passes[position >= samples];
      const auto some = step_of(sampler, options, position);
      pass.insert(pass.end(), some.begin(), some.end());
      position += std::ssize(some);
    }
    if (samples > 10) {
      EXPECT_NE(passes[0], passes[1]);
    }
    for (auto& pass : passes) {
      if (samples > 10) {
        EXPECT_FALSE(std::is_sorted(pass.begin(), pass.end()));
      }
      std::sort(pass.begin(), pass.end());
      for (int64_t i = 0; i < samples; ++i) ASSERT_EQ(pass[static_cast<size_t>(i)], i);
    }
  }
}

TEST(Sampler, AnyNumberOfRanksSeesTheSameSamplesInAStep) {
  const auto step = [](int64_t batch, int64_t micro_batches, int64_t ranks) {
    const Sampler::Options options{
        .samples = 103,
        .batch = batch,
        .micro_batches = micro_batches,
        .ranks = ranks,
        .shuffle = true,
        .seed = 3};
    return step_of(Sampler(options), options, 96);
  };
  const auto alone = step(24, 1, 1);
  EXPECT_EQ(step(6, 1, 4), alone);
  EXPECT_EQ(step(4, 3, 2), alone);
}

}  // namespace
}  // namespace sherd
