// SPDX-License-Identifier: Apache-2.0
#include "plan/call_tracker.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/call_tracker_check.h"
#include "plan/program_examples.h"

namespace sherd::testing {
namespace {

// Units of the orders below.
constexpr int32_t kRoot = 0;
constexpr int32_t kA = 1;
constexpr int32_t kB = 2;
constexpr int32_t kC = 3;
constexpr int32_t kD = 4;

/// Positions: root 0, a 1, b within a 2, c 3. Boundaries: 0 to 7.
Call nested_tree() {
  return {.unit = kRoot, .calls = {{.unit = kA, .calls = {{.unit = kB}}}, {.unit = kC}}};
}

class CallTrackerTest : public ::testing::Test {
 protected:
  void begin(const Call& tree, bool train = true, bool known = true) {
    order_ = order_of(tree);
    section_ = forward_section(order_);
    tracker_.begin(section_, order_, train, known);
  }
  CallTracker::Entered enter(int32_t unit, int64_t recompute = 0) {
    return tracker_.enter(unit, recompute);
  }
  CallTracker::Left leave(int32_t unit) { return tracker_.leave(unit); }
  /// Calls a unit that calls nothing. Returns its position.
  int32_t call(int32_t unit, int64_t recompute = 0) {
    const auto entered = enter(unit, recompute);
    EXPECT_TRUE(leave(unit).was_last);
    return entered.position;
  }

  static void expect_range(CallTracker::Range range, size_t begin, size_t end) {
    EXPECT_EQ(range.begin, begin);
    EXPECT_EQ(range.end, end);
  }
  static void expect_empty(CallTracker::Range range) { EXPECT_EQ(range.begin, range.end); }

  CallOrder order_;
  Section section_;
  CallTracker tracker_;
};

TEST_F(CallTrackerTest, SectionsOfTheseTestsHaveTheBoundariesOfAProgram) {
  const auto tree = nested_tree();
  const auto order = order_of(tree);
  const auto units = units_of(4, over_one_axis(Strategy::optim_grads_params));
  const auto program = Program::build(units, order, {});
  for (const bool train : {false, true}) {
    const auto& boundaries = program.forward({.train = train}).boundaries;
    const auto expected = forward_section(order).boundaries;
    ASSERT_EQ(boundaries.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(boundaries[i].kind, expected[i].kind);
      EXPECT_EQ(boundaries[i].position, expected[i].position);
      EXPECT_EQ(boundaries[i].unit, expected[i].unit);
    }
  }
}

TEST_F(CallTrackerTest, ForeseenCallsReturnEachBoundaryOnce) {
  begin(nested_tree());
  EXPECT_FALSE(tracker_.is_open());
  int32_t position = 0;
  std::vector<size_t> boundaries;
  for (const auto& event : order_) {
    if (event.enter) {
      const auto entered = enter(event.unit);
      expect_empty(entered.skipped);
      ASSERT_TRUE(entered.boundary);
      boundaries.push_back(*entered.boundary);
      EXPECT_EQ(entered.position, position++);
      EXPECT_EQ(entered.needless_copy, kNone);
      EXPECT_TRUE(tracker_.is_open());
    } else {
      const auto left = leave(event.unit);
      EXPECT_TRUE(left.was_last);
      expect_empty(left.skipped);
      ASSERT_TRUE(left.boundary);
      boundaries.push_back(*left.boundary);
      EXPECT_EQ(left.position_to_copy, kNone);
    }
  }
  EXPECT_EQ(boundaries, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_FALSE(tracker_.is_open());
  EXPECT_FALSE(tracker_.has_deviated());
  EXPECT_EQ(tracker_.observed(), order_);
  ASSERT_EQ(tracker_.made().size(), 4U);
  EXPECT_EQ(tracker_.made()[3].position, 3);
  expect_empty(tracker_.skip_rest());
}

TEST_F(CallTrackerTest, ASkippedCallIsReturnedWithTheCallsWithinIt) {
  begin(nested_tree());
  enter(kRoot);
  const auto entered = enter(kC);
  expect_range(entered.skipped, 1, 5);
  EXPECT_EQ(entered.boundary, 5U);
  EXPECT_EQ(entered.position, 3);
  EXPECT_FALSE(tracker_.has_deviated());
}

TEST_F(CallTrackerTest, CallsSkippedAtTheEndAreReturnedWhenTheirCallerIsLeft) {
  begin(nested_tree());
  enter(kRoot);
  enter(kA);
  const auto a = leave(kA);
  expect_range(a.skipped, 2, 4);
  EXPECT_EQ(a.boundary, 4U);
  const auto root = leave(kRoot);
  expect_range(root.skipped, 5, 7);
  EXPECT_EQ(root.boundary, 7U);
  EXPECT_FALSE(tracker_.has_deviated());
  EXPECT_EQ(tracker_.observed(), order_);
}

TEST_F(CallTrackerTest, ACallWhoseCallerIsSkippedIsForeseen) {
  begin(nested_tree());
  enter(kRoot);
  const auto b = enter(kB);
  expect_range(b.skipped, 1, 2);
  EXPECT_EQ(b.boundary, 2U);
  EXPECT_EQ(b.position, 2);
  EXPECT_EQ(leave(kB).boundary, 3U);
  const auto c = enter(kC);
  expect_range(c.skipped, 4, 5);
  EXPECT_EQ(c.boundary, 5U);
}

TEST_F(CallTrackerTest, OfTwoCallsOfOneUnitTheNextOneIsTaken) {
  begin({.unit = kRoot, .calls = {{.unit = kA}, {.unit = kB}, {.unit = kA}}});
  enter(kRoot);
  EXPECT_EQ(call(kA), 1);
  const auto second = enter(kA);
  expect_range(second.skipped, 3, 5);
  EXPECT_EQ(second.position, 3);
}

TEST_F(CallTrackerTest, AnUnforeseenCallHasNoBoundaryAndShiftsLaterPositions) {
  begin(nested_tree());
  enter(kRoot);
  const auto d = enter(kD);
  EXPECT_EQ(d.boundary, std::nullopt);
  expect_empty(d.skipped);
  EXPECT_EQ(d.position, 1);
  EXPECT_TRUE(tracker_.has_deviated());
  const auto left = leave(kD);
  EXPECT_TRUE(left.was_last);
  EXPECT_EQ(left.boundary, std::nullopt);
  expect_empty(left.skipped);
  const auto a = enter(kA);
  EXPECT_EQ(a.boundary, 1U);
  EXPECT_EQ(a.position, 2);
  const auto a_left = leave(kA);
  expect_range(a_left.skipped, 2, 4);  // b, at position 3
  const auto c = enter(kC);
  EXPECT_EQ(c.boundary, 5U);
  EXPECT_EQ(c.position, 4);
  leave(kC);
  EXPECT_EQ(leave(kRoot).boundary, 7U);
  const CallOrder expected{{kRoot, true}, {kD, true},  {kD, false}, {kA, true},  {kB, true},
                           {kB, false},   {kA, false}, {kC, true},  {kC, false}, {kRoot, false}};
  EXPECT_EQ(tracker_.observed(), expected);
}

TEST_F(CallTrackerTest, ACallOutsideItsCallerIsUnforeseen) {
  begin(nested_tree());
  enter(kRoot);
  enter(kA);
  EXPECT_EQ(enter(kC).boundary, std::nullopt);  // c comes after a has been left
  leave(kC);
  EXPECT_EQ(enter(kB).boundary, 2U);  // the order goes on within a
  leave(kB);
  EXPECT_EQ(leave(kA).boundary, 4U);
  EXPECT_EQ(enter(kC).boundary, 5U);
}

TEST_F(CallTrackerTest, EverythingWithinAnUnforeseenCallIsUnforeseen) {
  begin(nested_tree());
  enter(kRoot);
  enter(kD);
  const auto a = enter(kA);
  EXPECT_EQ(a.boundary, std::nullopt);
  EXPECT_EQ(a.position, 2);
  EXPECT_EQ(enter(kB).boundary, std::nullopt);
  for (const int32_t unit : {kB, kA, kD}) EXPECT_EQ(leave(unit).boundary, std::nullopt);
  EXPECT_EQ(enter(kA).boundary, 1U);
}

TEST_F(CallTrackerTest, ASecondCallOfTheRootIsUnforeseen) {
  begin(nested_tree());
  enter(kRoot);
  leave(kRoot);
  EXPECT_FALSE(tracker_.has_deviated());
  const auto again = enter(kRoot);
  EXPECT_EQ(again.boundary, std::nullopt);
  EXPECT_EQ(again.position, 4);
}

TEST_F(CallTrackerTest, AUnitThatWasNotEnteredLastCannotBeLeft) {
  begin(nested_tree());
  EXPECT_FALSE(leave(kRoot).was_last);
  enter(kRoot);
  enter(kA);
  const auto left = leave(kRoot);
  EXPECT_FALSE(left.was_last);
  EXPECT_EQ(left.boundary, std::nullopt);
  expect_empty(left.skipped);
  EXPECT_EQ(enter(kB).boundary, 2U);
}

TEST_F(CallTrackerTest, ARankWithoutDataReturnsTheWholeSection) {
  begin(nested_tree());
  expect_range(tracker_.skip_rest(), 0, 8);
  EXPECT_FALSE(tracker_.has_deviated());
  EXPECT_TRUE(tracker_.made().empty());
  expect_empty(tracker_.skip_rest());
  tracker_.note_other_order();
  EXPECT_TRUE(tracker_.has_deviated());
  EXPECT_EQ(tracker_.observed(), order_);
}

TEST_F(CallTrackerTest, ResetForgetsThePass) {
  begin(nested_tree());
  enter(kRoot, 5);
  enter(kD);
  tracker_.reset();
  EXPECT_FALSE(tracker_.is_open());
  EXPECT_FALSE(tracker_.has_deviated());
  EXPECT_FALSE(tracker_.has_copies());
  EXPECT_EQ(tracker_.needless_copy(), kNone);
  EXPECT_TRUE(tracker_.made().empty());
  begin(nested_tree());
  EXPECT_EQ(enter(kRoot).boundary, 0U);
}

/// Root, which calls a, b and c; the program expects no recompute.
Call flat_tree() {
  return {.unit = kRoot, .calls = {{.unit = kA}, {.unit = kB}, {.unit = kC}}};
}

TEST_F(CallTrackerTest, CallsUnderOneUnexpectedRecomputeAreCopied) {
  begin(flat_tree());
  enter(kRoot);
  for (const int32_t unit : {kA, kB}) {
    EXPECT_EQ(enter(unit, 9).needless_copy, kNone);
    EXPECT_EQ(leave(unit).position_to_copy, unit);  // position and unit are the same here
  }
  EXPECT_TRUE(tracker_.has_copies());
  EXPECT_EQ(enter(kC).needless_copy, kNone);
  EXPECT_EQ(leave(kC).position_to_copy, kNone);
  leave(kRoot);
  EXPECT_EQ(tracker_.needless_copy(), kNone);
  EXPECT_FALSE(tracker_.has_deviated());
  ASSERT_EQ(tracker_.made().size(), 4U);
  EXPECT_EQ(tracker_.made()[2].recompute, 9);
  EXPECT_EQ(tracker_.made()[3].recompute, 0);
}

TEST_F(CallTrackerTest, TheCopyOfARecomputeAroundOneCallIsNeedless) {
  begin(flat_tree());
  enter(kRoot);
  enter(kA, 9);
  EXPECT_EQ(leave(kA).position_to_copy, 1);
  EXPECT_EQ(enter(kB, 10).needless_copy, 1);
  EXPECT_EQ(leave(kB).position_to_copy, 2);
  EXPECT_EQ(enter(kC).needless_copy, 2);
  EXPECT_EQ(leave(kC).position_to_copy, kNone);
}

TEST_F(CallTrackerTest, TheLastCopyMayProveNeedlessAtTheEnd) {
  begin(flat_tree());
  enter(kRoot);
  enter(kC, 9);
  EXPECT_EQ(leave(kC).position_to_copy, 3);
  leave(kRoot);
  EXPECT_EQ(tracker_.needless_copy(), 3);
  EXPECT_TRUE(tracker_.has_copies());
}

TEST_F(CallTrackerTest, AnUnforeseenCallCountsAsOneOfItsRecompute) {
  begin(flat_tree());
  enter(kRoot);
  enter(kA, 9);
  leave(kA);
  enter(kD, 9);
  leave(kD);
  EXPECT_EQ(enter(kB).needless_copy, kNone);
}

TEST_F(CallTrackerTest, ARecomputeAroundNestedCallsCopiesThemAll) {
  begin(nested_tree());
  enter(kRoot);
  enter(kA, 9);
  EXPECT_EQ(enter(kB, 9).needless_copy, kNone);
  EXPECT_EQ(leave(kB).position_to_copy, 2);
  EXPECT_EQ(leave(kA).position_to_copy, 1);
  EXPECT_EQ(enter(kC).needless_copy, kNone);
}

TEST_F(CallTrackerTest, WhereTheOrderIsAGuessOrNoBackwardFollowsNothingIsCopied) {
  for (const bool train : {false, true}) {
    for (const bool known : {false, true}) {
      if (train && known) continue;
      begin(flat_tree(), train, known);
      enter(kRoot);
      for (const int32_t unit : {kA, kB}) {
        enter(unit, 9);
        EXPECT_EQ(leave(unit).position_to_copy, kNone);
      }
      EXPECT_FALSE(tracker_.has_copies());
      EXPECT_FALSE(tracker_.has_deviated());
      EXPECT_EQ(tracker_.made()[1].recompute, 9);
    }
  }
}

TEST_F(CallTrackerTest, AfterADeviationNothingIsCopied) {
  begin(flat_tree());
  enter(kRoot);
  call(kD);
  enter(kA, 9);
  EXPECT_EQ(leave(kA).position_to_copy, kNone);
  EXPECT_FALSE(tracker_.has_copies());
}

/// Root, which calls a and b under one recompute, and c under another.
Call recomputed_tree() {
  return {
      .unit = kRoot,
      .calls = {
          {.unit = kA, .recompute = 1},
          {.unit = kB, .recompute = 1},
          {.unit = kC, .recompute = 2}}};
}

TEST_F(CallTrackerTest, AnExpectedRecomputeNeedsNoCopy) {
  begin(recomputed_tree());
  enter(kRoot);
  for (const int32_t unit : {kA, kB}) {
    enter(unit, 9);
    EXPECT_EQ(leave(unit).position_to_copy, kNone);
  }
  enter(kC, 10);
  EXPECT_EQ(leave(kC).position_to_copy, kNone);
  leave(kRoot);
  EXPECT_FALSE(tracker_.has_deviated());
  EXPECT_FALSE(tracker_.has_copies());
  EXPECT_EQ(tracker_.observed(), order_);  // with the recomputes that were expected
}

TEST_F(CallTrackerTest, CallsOutsideTheirExpectedRecomputeAreNoDeviation) {
  begin(recomputed_tree());
  enter(kRoot);
  for (const int32_t unit : {kA, kB, kC}) call(unit);
  leave(kRoot);
  EXPECT_FALSE(tracker_.has_deviated());
  EXPECT_FALSE(tracker_.has_copies());
}

TEST_F(CallTrackerTest, ARecomputeThatBeginsWhereAnotherWasExpectedDeviates) {
  begin(recomputed_tree());
  enter(kRoot);
  call(kA, 9);
  EXPECT_EQ(call(kB, 10), 2);  // a part of the expected one
  EXPECT_FALSE(tracker_.has_deviated());
  const auto entered = enter(kC, 10);
  EXPECT_EQ(entered.boundary, 5U);
  EXPECT_EQ(entered.position, 3);
  EXPECT_TRUE(tracker_.has_deviated());
  EXPECT_EQ(leave(kC).position_to_copy, kNone);
  leave(kRoot);
  EXPECT_EQ(without_recomputes(tracker_.observed()), without_recomputes(order_));
}

TEST_F(CallTrackerTest, InAnOrderThatIsAGuessNoRecomputeDeviates) {
  begin(recomputed_tree(), /*train=*/true, /*known=*/false);
  enter(kRoot);
  for (const int32_t unit : {kA, kB, kC}) call(unit, 10);
  EXPECT_FALSE(tracker_.has_deviated());
}

TEST_F(CallTrackerTest, ARecomputeThatBeginsBeforeTheExpectedOneCopiesItsCalls) {
  begin({.unit = kRoot, .calls = {{.unit = kA}, {.unit = kB, .recompute = 1}}});
  enter(kRoot);
  enter(kA, 9);
  EXPECT_EQ(leave(kA).position_to_copy, 1);
  enter(kB, 9);
  EXPECT_EQ(leave(kB).position_to_copy, 2);
  EXPECT_FALSE(tracker_.has_deviated());
}

TEST_F(CallTrackerTest, ARecomputeThatEndsAfterTheExpectedOneDeviates) {
  begin({.unit = kRoot, .calls = {{.unit = kA, .recompute = 1}, {.unit = kB}}});
  enter(kRoot);
  call(kA, 9);
  enter(kB, 9);
  EXPECT_TRUE(tracker_.has_deviated());
  EXPECT_EQ(leave(kB).position_to_copy, kNone);
}

TEST(CallTrackerProperties, HoldForRandomOrdersAndCalls) {
  int deviated = 0;
  for (uint32_t seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const Choose choose = [&](uint32_t count) { return static_cast<uint32_t>(random() % count); };
    const auto broken = check_random_calls(choose);
    ASSERT_EQ(broken, "") << "seed " << seed;
    CallGenerator generator(choose);
    const auto tree = generator.tree();
    CallTrackerCheck check(order_of(tree), {});
    check.make(generator.changed(tree));
    deviated += check.tracker().has_deviated() ? 1 : 0;
  }
  // Both kinds of passes were common.
  EXPECT_GT(deviated, 4000);
  EXPECT_LT(deviated, 16000);
}

}  // namespace
}  // namespace sherd::testing
