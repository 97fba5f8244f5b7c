// SPDX-License-Identifier: Apache-2.0
#include "plan/call_marks.h"

#include <gtest/gtest.h>

#include <random>

namespace sherd::testing {
namespace {

/// Unit 0, which calls units 1 to `calls`, at positions of the same numbers.
CallOrder flat_order(int32_t calls) {
  CallOrder order{{0, true}};
  for (int32_t unit = 1; unit <= calls; ++unit) {
    order.push_back({unit, true});
    order.push_back({unit, false});
  }
  order.push_back({0, false});
  return order;
}

std::vector<int32_t> recomputes_of(const CallOrder& order) {
  std::vector<int32_t> recomputes;
  for (const auto& event : order) {
    if (event.enter) recomputes.push_back(event.recompute);
  }
  return recomputes;
}

std::vector<int32_t> units_called_in(const CallOrder& order) {
  std::vector<int32_t> units;
  for (const auto& event : order) {
    if (event.enter) units.push_back(event.unit);
  }
  return units;
}

using Positions = std::vector<int32_t>;

TEST(CallMarks, CountsCallsByTheirBegins) {
  EXPECT_EQ(count_calls({}), 0U);
  EXPECT_EQ(count_calls(flat_order(3)), 4U);
}

TEST(CallMarks, OfNoCallHasNoMark) {
  const auto marks = CallMarks::none(flat_order(2));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(
        marks.is_made(i) || marks.is_inside(i) || marks.is_outside(i) || marks.is_joined(i));
  }
  EXPECT_FALSE(marks.is_plain());
  EXPECT_FALSE(marks.contradiction());
  EXPECT_TRUE(CallMarks::none({}).is_plain());
}

TEST(CallMarks, ArePlainIfEveryCallIsMadeOutsideRecomputes) {
  const auto order = flat_order(2);
  EXPECT_TRUE(CallMarks::of(order, {{0, 0}, {1, 0}, {2, 0}}).is_plain());
  EXPECT_FALSE(CallMarks::of(order, {{0, 0}, {2, 0}}).is_plain());
  EXPECT_FALSE(CallMarks::of(order, {{0, 0}, {1, 0}, {2, 4}}).is_plain());
}

TEST(CallMarks, SayWhereACallWasMade) {
  const auto marks = CallMarks::of(flat_order(3), {{0, 0}, {1, 8}, {3, 0}});
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(marks.is_made(i), i != 2) << i;
    EXPECT_EQ(marks.is_inside(i), i == 1) << i;
    EXPECT_EQ(marks.is_outside(i), i == 0 || i == 3) << i;
    EXPECT_FALSE(marks.is_joined(i)) << i;
  }
}

TEST(CallMarks, ARecomputeJoinsAllPositionsThatItSpans) {
  // The call at position 2 was not made on this rank; another may make it.
  const auto marks = CallMarks::of(flat_order(5), {{0, 0}, {1, 8}, {3, 8}, {4, 9}, {5, 9}});
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(marks.is_joined(i), i == 1 || i == 2 || i == 4) << i;
  EXPECT_FALSE(marks.is_inside(2));
}

TEST(CallMarks, TheMarksOfAnOrderGiveItsRecomputesBack) {
  auto order = flat_order(6);
  EXPECT_EQ(with_recomputes(order, CallMarks::of_recomputes(order)), order);
  const Positions recomputes{kNone, 1, 1, 3, kNone, 5, 5};
  size_t position = 0;
  for (auto& event : order) {
    if (event.enter) event.recompute = recomputes[position++];
  }
  const auto marks = CallMarks::of_recomputes(order);
  for (size_t i = 0; i < recomputes.size(); ++i) {
    EXPECT_EQ(marks.is_inside(i), recomputes[i] != kNone) << i;
    EXPECT_EQ(marks.is_joined(i), i == 1 || i == 5) << i;
    EXPECT_FALSE(marks.is_made(i)) << i;
  }
  EXPECT_EQ(with_recomputes(without_recomputes(order), marks), order);
  EXPECT_EQ(recomputes_of(without_recomputes(order)), Positions(7, kNone));
}

TEST(CallMarks, RecomputesAreNumberedByTheirFirstPosition) {
  const auto order = flat_order(4);
  const auto marks = CallMarks::of(order, {{0, 0}, {1, 70}, {2, 3}, {3, 3}, {4, 0}});
  EXPECT_EQ(recomputes_of(with_recomputes(order, marks)), (Positions{kNone, 1, 2, 2, kNone}));
}

TEST(CallMarks, ACallThatIsSkippedWithinARecomputeIsPartOfIt) {
  const auto order = flat_order(3);
  const auto marks = CallMarks::of(order, {{0, 0}, {1, 8}, {3, 8}});
  EXPECT_EQ(recomputes_of(with_recomputes(order, marks)), (Positions{kNone, 1, 1, 1}));
}

TEST(CallMarks, RanksThatSkipDifferentCallsAgreeOnAllOfThem) {
  const auto order = flat_order(4);
  const auto first = CallMarks::of(order, {{0, 0}, {1, 5}, {2, 5}});
  const auto second = CallMarks::of(order, {{0, 0}, {2, 1}, {3, 1}});
  const auto joined = first.joined_with(second);
  EXPECT_EQ(joined.values(), second.joined_with(first).values());
  EXPECT_EQ(joined.values(), joined.joined_with(CallMarks::none(order)).values());
  EXPECT_FALSE(joined.contradiction());
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(joined.is_made(i), i != 4) << i;
  // The two spans meet at position 2: one recompute.
  EXPECT_EQ(recomputes_of(with_recomputes(order, joined)), (Positions{kNone, 1, 1, 1, kNone}));
}

TEST(CallMarks, SpansThatOnlyTouchStayApart) {
  const auto order = flat_order(4);
  const auto first = CallMarks::of(order, {{0, 0}, {1, 5}, {2, 5}});
  const auto second = CallMarks::of(order, {{0, 0}, {3, 1}, {4, 1}});
  const auto agreed = with_recomputes(order, first.joined_with(second));
  EXPECT_EQ(recomputes_of(agreed), (Positions{kNone, 1, 1, 3, 3}));
}

TEST(CallMarks, ACallInsideAndOutsideARecomputeIsAContradiction) {
  const auto order = flat_order(3);
  const auto first = CallMarks::of(order, {{0, 0}, {1, 0}, {2, 5}, {3, 0}});
  const auto second = CallMarks::of(order, {{0, 0}, {1, 0}, {2, 0}, {3, 7}});
  EXPECT_FALSE(first.contradiction());
  EXPECT_EQ(first.joined_with(second).contradiction(), 2U);
}

TEST(CallMarks, MarksSurviveBeingSent) {
  const auto marks = CallMarks::of(flat_order(3), {{0, 0}, {1, 5}, {2, 5}});
  const CallMarks received(marks.values());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(received.is_made(i), marks.is_made(i));
    EXPECT_EQ(received.is_inside(i), marks.is_inside(i));
    EXPECT_EQ(received.is_outside(i), marks.is_outside(i));
    EXPECT_EQ(received.is_joined(i), marks.is_joined(i));
  }
}

/// Root, which calls a (which calls b), c and a again.
const CallOrder kRepeated{{0, true}, {1, true},  {2, true}, {2, false}, {1, false},
                          {3, true}, {3, false}, {1, true}, {1, false}, {0, false}};

TEST(WithoutSkipped, DropsASkippedCallOfAUnitThatIsCalledElsewhere) {
  const auto marks = CallMarks::of(kRepeated, {{0, 0}, {1, 0}, {2, 0}, {3, 0}});
  const auto [order, positions] = without_skipped(kRepeated, marks, 4);
  EXPECT_EQ(units_called_in(order), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(positions, (Positions{0, 1, 2, 3, kNone}));
}

TEST(WithoutSkipped, KeepsACallWithinADroppedOne) {
  // b is made, but not within the first call of a.
  const auto marks = CallMarks::of(kRepeated, {{0, 0}, {2, 0}, {3, 0}, {4, 0}});
  const auto [order, positions] = without_skipped(kRepeated, marks, 4);
  const CallOrder expected{{0, true},  {2, true}, {2, false}, {3, true},
                           {3, false}, {1, true}, {1, false}, {0, false}};
  EXPECT_EQ(order, expected);
  EXPECT_EQ(positions, (Positions{0, kNone, 1, 2, 3}));
}

TEST(WithoutSkipped, KeepsUnitsThatNoRankCalls) {
  const auto marks = CallMarks::of(kRepeated, {{0, 0}, {1, 0}});
  const auto [order, positions] = without_skipped(kRepeated, marks, 4);
  EXPECT_EQ(units_called_in(order), (Positions{0, 1, 2, 3}));
  const auto [all, same] = without_skipped(kRepeated, CallMarks::none(kRepeated), 4);
  EXPECT_EQ(all, kRepeated);
  EXPECT_EQ(same, (Positions{0, 1, 2, 3, 4}));
}

TEST(WithoutSkipped, NumbersTheRecomputesOfTheShorterOrder) {
  // Units 1, 1, 2, 1, 3 at positions 1 to 5; 2 to 4 are under one recompute, 5 under another.
  CallOrder order{{0, true}};
  for (const int32_t unit : {1, 1, 2, 1, 3}) {
    order.push_back({unit, true});
    order.push_back({unit, false});
  }
  order.push_back({0, false});
  const auto marks = CallMarks::of(order, {{0, 0}, {3, 8}, {4, 8}, {5, 9}})
                         .joined_with(CallMarks::of(order, {{2, 7}, {3, 7}}));
  const auto known = with_recomputes(order, marks);
  EXPECT_EQ(recomputes_of(known), (Positions{kNone, kNone, 2, 2, 2, 5}));
  const auto [shorter, positions] = without_skipped(known, marks, 4);
  EXPECT_EQ(units_called_in(shorter), (Positions{0, 1, 2, 1, 3}));
  EXPECT_EQ(recomputes_of(shorter), (Positions{kNone, 1, 1, 1, 4}));
  EXPECT_EQ(positions, (Positions{0, kNone, 1, 2, 3, 4}));
}

TEST(WithoutSkipped, ARecomputeWhoseFirstCallIsDroppedTakesTheNumberOfItsNext) {
  CallOrder order{{0, true}};
  for (const int32_t unit : {1, 2, 3, 1}) {
    order.push_back({unit, true, unit == 1 ? kNone : 2});
    order.push_back({unit, false});
  }
  order.push_back({0, false});
  order[1].recompute = 1;
  order[3].recompute = order[5].recompute = 1;
  const auto marks = CallMarks::of(order, {{0, 0}, {2, 8}, {3, 8}, {4, 0}});
  const auto [shorter, positions] = without_skipped(order, marks, 4);
  EXPECT_EQ(units_called_in(shorter), (Positions{0, 2, 3, 1}));
  EXPECT_EQ(recomputes_of(shorter), (Positions{kNone, 1, 1, kNone}));
  EXPECT_EQ(positions, (Positions{0, kNone, 1, 2, 3}));
}

/// Marks of random ranks: joining does not depend on the order of the ranks, and each rank's
/// recomputes lie within one recompute of the joined order.
TEST(CallMarksProperties, JoinedMarksContainThoseOfEachRank) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const auto order = flat_order(1 + static_cast<int32_t>(random() % 10));
    const auto calls = static_cast<int32_t>(count_calls(order));
    std::vector<std::vector<MadeCall>> ranks(1 + random() % 4);
    auto forth = CallMarks::none(order);
    for (auto& made : ranks) {
      int64_t recompute = 0;
      for (int32_t position = 0; position < calls; ++position) {
        if (random() % 3 == 0) recompute = random() % 2 == 0 ? 0 : position + 1;
        if (random() % 4 != 0) made.push_back({position, recompute});
      }
      forth = forth.joined_with(CallMarks::of(order, made));
    }
    auto back = CallMarks::none(order);
    for (auto made = ranks.rbegin(); made != ranks.rend(); ++made) {
      back = back.joined_with(CallMarks::of(order, *made));
    }
    ASSERT_EQ(forth.values(), back.values()) << seed;
    const auto agreed = with_recomputes(order, forth);
    const auto recomputes = recomputes_of(agreed);
    for (const auto& made : ranks) {
      for (size_t i = 0; i < made.size(); ++i) {
        const auto at = static_cast<size_t>(made[i].position);
        ASSERT_TRUE(forth.is_made(at)) << seed;
        if (made[i].recompute == 0) continue;
        ASSERT_NE(recomputes[at], kNone) << seed;
        if (i == 0 || made[i - 1].recompute != made[i].recompute) continue;
        ASSERT_EQ(recomputes[at], recomputes[static_cast<size_t>(made[i - 1].position)]) << seed;
      }
    }
    for (size_t i = 0; i < recomputes.size(); ++i) {
      if (recomputes[i] == kNone) continue;
      ASSERT_LE(recomputes[i], static_cast<int32_t>(i)) << seed;
      const auto first = static_cast<size_t>(recomputes[i]);
      ASSERT_EQ(recomputes[first], recomputes[i]) << seed;
    }
    ASSERT_EQ(with_recomputes(order, CallMarks::of_recomputes(agreed)), agreed) << seed;
  }
}

}  // namespace
}  // namespace sherd::testing
