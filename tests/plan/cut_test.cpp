// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/cut.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/cut_cover.h"

namespace sherd {
namespace {

using Shape = std::vector<int64_t>;

int64_t product(const Shape& dims) {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

std::string refusal(const Cut& cut) {
  try {
    check_cut(cut, "layer.weight");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const auto& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

/// The elements of a part, each by its number in the whole, straight from the definition.
std::vector<int64_t> elements_by_index(const Cut& cut) {
  const auto dim = static_cast<size_t>(cut.dim);
  std::vector<int64_t> result;
  Shape index(cut.shape.size(), 0);
  for (int64_t element = 0; element < product(cut.shape); ++element) {
    for (int64_t rest = element, d = std::ssize(index) - 1; d >= 0; --d) {
      const auto place = static_cast<size_t>(d);
      index[place] = rest % cut.shape[place];
      rest /= cut.shape[place];
    }
    for (const auto& range : cut.ranges) {
      if (range.begin <= index[dim] && index[dim] < range.end) result.push_back(element);
    }
  }
  return result;
}

std::vector<CutRun> runs_of(const Cut& cut, int64_t begin, int64_t count) {
  std::vector<CutRun> result;
  each_run(cut, begin, count, [&](const CutRun& run) { result.push_back(run); });
  return result;
}

/// Walks every range of the part and compares each element with the definition.
void expect_all_runs(const Cut& cut) {
  check_cut(cut, "weight");
  const auto expected = elements_by_index(cut);
  ASSERT_EQ(part_elements(cut), std::ssize(expected));
  ASSERT_EQ(product(part_shape(cut)), std::ssize(expected));
  for (int64_t begin = 0; begin <= std::ssize(expected); ++begin) {
    for (int64_t end = begin; end <= std::ssize(expected); ++end) {
      int64_t at = begin;
      int64_t before = -1;  // where the run before ended, in the whole
      for (const auto& run : runs_of(cut, begin, end - begin)) {
        ASSERT_EQ(run.in_part, at);
        ASSERT_GT(run.length, 0);
        ASSERT_NE(run.in_whole, before) << "two runs that are one";
        for (int64_t i = 0; i < run.length; ++i) {
          ASSERT_EQ(run.in_whole + i, expected[static_cast<size_t>(at + i)]) << to_text(cut);
        }
        at += run.length;
        before = run.in_whole + run.length;
      }
      ASSERT_EQ(at, end);
    }
  }
}

TEST(Cut, QueriesKeysAndValuesAreThreeRangesOfRows) {
  const Cut qkv{{8, 3}, 0, {{2, 4}, {5, 6}, {7, 8}}};
  EXPECT_EQ(part_shape(qkv), Shape({4, 3}));
  EXPECT_EQ(runs_of(qkv, 0, 12), std::vector<CutRun>({{0, 6, 6}, {6, 15, 3}, {9, 21, 3}}));
  EXPECT_EQ(runs_of(qkv, 4, 4), std::vector<CutRun>({{4, 10, 2}, {6, 15, 2}}));
  EXPECT_EQ(to_text(qkv), "rows 2..4, 5..6, 7..8 of [8, 3]");
  expect_all_runs(qkv);
}

TEST(Cut, ColumnsAreOneRunForEachRow) {
  const Cut columns{{3, 4}, 1, {{1, 3}}};
  EXPECT_EQ(part_shape(columns), Shape({3, 2}));
  EXPECT_EQ(runs_of(columns, 0, 6), std::vector<CutRun>({{0, 1, 2}, {2, 5, 2}, {4, 9, 2}}));
  EXPECT_EQ(to_text(columns), "columns 1..3 of [3, 4]");
  expect_all_runs(columns);
  expect_all_runs({{3, 6}, 1, {{0, 1}, {2, 3}, {5, 6}}});
}

TEST(Cut, ExpertsAreOneRunOfTheFirstDim) {
  const Cut experts{{6, 2, 3}, 0, {{2, 4}}};
  EXPECT_EQ(part_shape(experts), Shape({2, 2, 3}));
  EXPECT_EQ(runs_of(experts, 0, 12), std::vector<CutRun>({{0, 12, 12}}));
  expect_all_runs(experts);
}

TEST(Cut, MiddleAndLastDimsAndVectorsAreCutAlike) {
  expect_all_runs({{2, 4, 3}, 1, {{0, 1}, {2, 4}}});
  expect_all_runs({{2, 3, 5}, 2, {{1, 2}, {4, 5}}});
  expect_all_runs({{7}, 0, {{1, 3}, {6, 7}}});
  EXPECT_EQ(to_text(Cut{{2, 3, 5}, 2, {{1, 2}}}), "indices 1..2 along dim 2 of [2, 3, 5]");
}

TEST(Cut, AWholeParameterIsOneRunWhereverItIsCut) {
  for (int64_t dim = 0; dim < 3; ++dim) {
    const Cut whole{{2, 3, 4}, dim, {{0, dim + 2}}};
    EXPECT_EQ(part_shape(whole), whole.shape);
    EXPECT_EQ(runs_of(whole, 0, 24), std::vector<CutRun>({{0, 0, 24}}));
    EXPECT_EQ(runs_of(whole, 5, 7), std::vector<CutRun>({{5, 5, 7}}));
  }
  const Cut neighbours{{4, 2}, 0, {{0, 1}, {1, 4}}};
  EXPECT_EQ(runs_of(neighbours, 0, 8), std::vector<CutRun>({{0, 0, 8}}));
}

TEST(Cut, PartsWithoutElementsHaveNoRuns) {
  const Cut empty{{4, 0}, 0, {{1, 2}}};
  check_cut(empty, "weight");
  EXPECT_EQ(part_elements(empty), 0);
  EXPECT_TRUE(runs_of(empty, 0, 0).empty());
  EXPECT_TRUE(runs_of({{4, 2}, 0, {{1, 2}}}, 1, 0).empty());
}

TEST(Cut, WhatIsNoCutIsRefusedInWords) {
  EXPECT_EQ(refusal({{4, 2}, 0, {{0, 2}, {2, 3}}}), "");
  expect_words(
      refusal({{4, 2}, 2, {{0, 1}}}), {"[plan.cut]", "'layer.weight'", "[4, 2]", "no dim 2"});
  expect_words(refusal({{}, 0, {{0, 1}}}), {"[]", "no dim 0"});
  expect_words(refusal({{4, 2}, -1, {{0, 1}}}), {"no dim -1"});
  expect_words(refusal({{4, -2}, 0, {{0, 1}}}), {"negative dim -2"});
  expect_words(
      refusal({{int64_t{1} << 40, int64_t{1} << 40}, 0, {{0, 1}}}), {"over 2^62 elements"});
  expect_words(refusal({{4, 2}, 0, {}}), {"'layer.weight'", "no ranges", "dim 0"});
  expect_words(refusal({{4, 2}, 0, {{1, 1}}}), {"1..1", "empty", "leave it out"});
  expect_words(refusal({{4, 2}, 0, {{3, 1}}}), {"3..1", "empty"});
  expect_words(refusal({{4, 2}, 0, {{2, 5}}}), {"2..5", "within dim 0 of [4, 2]", "4 indices"});
  expect_words(refusal({{4, 2}, 1, {{-1, 1}}}), {"-1..1", "within dim 1"});
  expect_words(refusal({{4, 2}, 0, {{0, 2}, {1, 3}}}), {"1..3", "before 2", "disjoint"});
  expect_words(refusal({{4, 2}, 0, {{2, 3}, {0, 1}}}), {"0..1", "before 3", "ascending"});
}

std::string fault(const Shape& shape, int64_t dim, const std::vector<HeldPart>& parts) {
  return fault_of_parts(shape, dim, parts).value_or("");
}

TEST(CutCover, PartsThatMakeTheWholeAreFine) {
  EXPECT_EQ(fault({8, 2}, 0, {{{{0, 8}}, 0}}), "");
  EXPECT_EQ(fault({8, 2}, 0, {{{{4, 8}}, 1}, {{{0, 4}}, 0}}), "");
  EXPECT_EQ(fault({8, 2}, 0, {{{{0, 1}, {4, 6}}, 0}, {{{1, 4}, {6, 8}}, 2}}), "");
  EXPECT_EQ(fault({2, 8}, 1, {{{{0, 4}}, 2}, {{{4, 8}}, 1}}), "");
}

TEST(CutCover, WhatIsMissingOrDoubledIsNamed) {
  expect_words(fault({8, 2}, 0, {{{{2, 8}}, 0}}), {"no rank has rows 0..2 of [8, 2]"});
  expect_words(
      fault({8, 2}, 0, {{{{0, 2}}, 0}, {{{4, 8}}, 3}}), {"no rank has rows 2..4 of [8, 2]"});
  expect_words(fault({2, 8}, 1, {{{{0, 7}}, 0}}), {"no rank has columns 7..8 of [2, 8]"});
  expect_words(
      fault({8, 2}, 0, {{{{0, 4}}, 0}, {{{3, 8}}, 5}}),
      {"rows 3..4 of [8, 2]", "rank 0 and rank 5", "correct the cuts"});
  expect_words(
      fault({8, 2}, 0, {{{{0, 8}}, 0}, {{{2, 4}}, 5}}),
      {"rows 2..4 of [8, 2]", "rank 0 and rank 5"});
  expect_words(
      fault({8, 2}, 0, {{{{0, 4}}, 0}, {{{4, 8}}, 1}, {{{0, 4}}, 2}}),
      {"rows 0..4 of [8, 2]", "rank 0 and rank 2", "not added", "Mesh::flatten"});
}

}  // namespace
}  // namespace sherd
