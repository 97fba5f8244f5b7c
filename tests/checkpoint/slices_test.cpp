// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/slices.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

/// Where each element of a parameter lies in its tensors, by a tensor of their numbers.
std::vector<std::pair<std::string, int64_t>> places(const std::vector<TensorSlice>& slices) {
  std::vector<std::pair<std::string, int64_t>> result;
  for (const auto& slice : slices) {
    auto numbers = at::arange(c10::multiply_integers(slice.shape), at::kLong).view(slice.shape);
    for (size_t dim = 0; dim < slice.ranges.size(); ++dim) {
      const auto [from, to] = slice.ranges[dim];
      numbers = numbers.narrow(static_cast<int64_t>(dim), from, to - from);
    }
    numbers = numbers.contiguous().view({-1});
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      result.emplace_back(slice.tensor, numbers[i].item<int64_t>());
    }
  }
  return result;
}

TEST(CheckpointSlices, RunsCoverEachElementOnceAndInPlace) {
  const std::vector<std::vector<TensorSlice>> cases{
      {{"whole", {3, 4}}},
      {{"scalar", {}}},
      {{"rows", {6, 4}, {{2, 5}, {0, 4}}}},
      {{"columns", {6, 4}, {{0, 6}, {1, 3}}}},
      {{"box", {4, 3, 5}, {{1, 3}, {0, 2}, {2, 5}}}},
      {{"middle", {4, 3, 5}, {{0, 4}, {1, 2}, {0, 5}}}},
      {{"query", {4, 3}}, {"key", {2, 3}}, {"value", {2, 3}}},
      {{"empty", {0, 3}}, {"gate", {4, 6}, {{0, 4}, {0, 3}}}, {"gate", {4, 6}, {{0, 4}, {3, 6}}}},
  };
  for (const auto& slices : cases) {
    const auto expected = places(slices);
    const auto size = std::ssize(expected);
    for (int64_t begin = 0; begin <= size; ++begin) {
      for (int64_t end = begin; end <= size; ++end) {
        int64_t at = begin;
        each_run(slices, begin, end, [&](const sherd::Run& run) {
          ASSERT_EQ(run.in_parameter, at);
          ASSERT_GT(run.length, 0);
          for (int64_t i = 0; i < run.length; ++i, ++at) {
            ASSERT_EQ(*run.tensor, expected[static_cast<size_t>(at)].first);
            ASSERT_EQ(run.in_tensor + i, expected[static_cast<size_t>(at)].second);
          }
        });
        ASSERT_EQ(at, end);
      }
    }
  }
}

TEST(CheckpointSlices, AWholeTensorIsOneRun) {
  int runs = 0;
  each_run(
      {{"rows", {6, 4, 2}, {{2, 5}, {0, 4}, {0, 2}}}}, 0, 24, [&](const sherd::Run&) { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(CheckpointSlices, SlicesThatDoNotFitAreRefused) {
  const auto give = [](TensorSlice slice) {
    return [slice](const std::string&, at::IntArrayRef) { return std::vector{slice}; };
  };
  EXPECT_THROW(checked_slices(give({"a", {3, 4}}), "p", {12, 2}), c10::ValueError);
  EXPECT_THROW(checked_slices(give({"a", {3, 4}, {{0, 4}, {0, 3}}}), "p", {12}), c10::ValueError);
  EXPECT_THROW(checked_slices(give({"a", {3, 4}, {{0, 3}}}), "p", {12}), c10::ValueError);
  EXPECT_EQ(checked_slices(give({"a", {3, 4}}), "p", {12}).size(), 1u);
}

}  // namespace
}  // namespace sherd
