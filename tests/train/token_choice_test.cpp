// SPDX-License-Identifier: Apache-2.0
#include "train/token_choice.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace sherd {
namespace {

const std::vector<double> kChances{0.1, 0.4, 0.05, 0.25, 0.2};  // of the tokens 0 to 4

at::Tensor logits() {
  std::vector<float> result;
  for (const double chance : kChances) result.push_back(static_cast<float>(std::log(chance)) + 3);
  return at::tensor(result);
}

/// How often each token is drawn.
std::map<int64_t, double> shares(const TokenChoice& choice) {
  constexpr int kDraws = 20000;
  TokenChooser chooser(choice);
  std::map<int64_t, double> result;
  for (int i = 0; i < kDraws; ++i) result[chooser.choose(logits())] += 1.0 / kDraws;
  return result;
}

void expect_shares(const TokenChoice& choice, const std::map<int64_t, double>& weights) {
  double sum = 0;
  for (const auto& [token, weight] : weights) sum += weight;
  const auto drawn = shares(choice);
  EXPECT_EQ(drawn.size(), weights.size());
  for (const auto& [token, weight] : weights) {
    ASSERT_TRUE(drawn.contains(token)) << token;
    EXPECT_NEAR(drawn.at(token), weight / sum, 0.015) << token;  // four standard deviations
  }
}

TEST(TokenChoice, WithoutTemperatureItIsTheMostLikelyToken) {
  TokenChooser chooser({});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(chooser.choose(logits()), 1);
}

TEST(TokenChoice, TokensAreDrawnAsOftenAsTheyAreLikely) {
  expect_shares({.temperature = 1}, {{0, .1}, {1, .4}, {2, .05}, {3, .25}, {4, .2}});
  expect_shares({.temperature = 0.5}, {{0, .01}, {1, .16}, {2, .0025}, {3, .0625}, {4, .04}});
}

TEST(TokenChoice, TopKAndTopPLeaveTheMostLikelyOnes) {
  expect_shares({.temperature = 1, .top_k = 3}, {{1, .4}, {3, .25}, {4, .2}});
  expect_shares({.temperature = 1, .top_p = 0.6}, {{1, .4}, {3, .25}});
  // Of the k most likely ones: 0.25 / 0.65 is missing to 0.63.
  expect_shares({.temperature = 1, .top_k = 2, .top_p = 0.6}, {{1, .4}});
  expect_shares({.temperature = 1, .top_p = 1e-9}, {{1, .4}});
}

TEST(TokenChoice, TheSameSeedDrawsTheSame) {
  const auto draws = [](uint64_t seed) {
    TokenChooser chooser({.temperature = 1, .seed = seed});
    std::vector<int64_t> result;
    for (int i = 0; i < 40; ++i) result.push_back(chooser.choose(logits()));
    return result;
  };
  EXPECT_EQ(draws(7), draws(7));
  EXPECT_NE(draws(7), draws(8));
}

}  // namespace
}  // namespace sherd
