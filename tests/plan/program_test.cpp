// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "plan/program_examples.h"

namespace sherd {
namespace {

using enum Strategy;
using testing::over_one_axis;
using testing::over_two_axes;
using testing::Spreading;
using testing::under_a_root;
using testing::units_of;

Program three_passes(const Spreading& spreading) {
  return Program::build(units_of(3, spreading), under_a_root(3), {.micro_batches = 3});
}

std::vector<int64_t> calls(const Program& program) {
  const auto traffic = program.traffic();
  return {traffic.all_gather.calls, traffic.reduce_scatter.calls, traffic.all_reduce.calls};
}

template <class Error>
std::string words(
    std::vector<UnitSpec> units, CallOrder order, const ProgramOptions& options = {}) {
  try {
    Program::build(std::move(units), std::move(order), options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- collectives
// ---------------------------------------------------------------------------------

TEST(Program, CountsTheCollectivesOfThreePassesAndThreeGroups) {
  using Counts = std::vector<int64_t>;  // all-gathers, reduce-scatters, all-reduces
  EXPECT_EQ(calls(three_passes(over_one_axis(no_shard))), (Counts{0, 0, 3}));
  EXPECT_EQ(calls(three_passes(over_one_axis(optim))), (Counts{3, 3, 0}));
  EXPECT_EQ(calls(three_passes(over_one_axis(optim_grads))), (Counts{3, 9, 0}));
  EXPECT_EQ(calls(three_passes(over_one_axis(optim_grads_params))), (Counts{18, 9, 0}));
  EXPECT_EQ(calls(three_passes(over_two_axes(optim_grads_params, no_shard))), (Counts{18, 9, 3}));
  EXPECT_EQ(calls(three_passes(over_two_axes(optim_grads_params, optim))), (Counts{21, 12, 0}));
  // Over both axes every gather and every reduction takes two steps.
  EXPECT_EQ(
      calls(three_passes(over_two_axes(optim_grads_params, optim_grads_params))),
      (Counts{36, 18, 0}));
}

TEST(Program, CountsTheBytesOfTheFullSideOfEachCollective) {
  const int64_t full = 64 * 4;
  const auto inner = three_passes(over_one_axis(optim_grads_params)).traffic();
  EXPECT_EQ(inner.all_gather, (Traffic{18, 18 * full}));
  EXPECT_EQ(inner.reduce_scatter, (Traffic{9, 9 * full}));
  const auto hfsdp = three_passes(over_two_axes(optim_grads_params, optim)).traffic();
  EXPECT_EQ(hfsdp.all_gather, (Traffic{21, 18 * full + 3 * full / 2})) << "outer: of an inner part";
  EXPECT_EQ(hfsdp.reduce_scatter, (Traffic{12, 9 * full + 3 * full / 2}));
}

TEST(Program, RecomputeAddsNoCollectives) {
  const CallOrder plain = under_a_root(4);
  const CallOrder nested{{0, true},  {1, true}, {2, true},  {2, false},
                         {1, false}, {3, true}, {3, false}, {0, false}};
  const auto under = [](CallOrder order, std::vector<int32_t> recomputes) {
    size_t position = 0;
    for (auto& visit : order) {
      if (visit.enter) visit.recompute = recomputes[position++];
    }
    return order;
  };
  for (const auto strategy : {optim_grads, optim_grads_params}) {
    const auto units = units_of(4, over_one_axis(strategy));
    const auto counts = [&](const CallOrder& order) {
      return calls(Program::build(units, order, {.micro_batches = 2}));
    };
    EXPECT_EQ(counts(under(plain, {-1, 0, 1, 2})), counts(plain)) << "each alone";
    EXPECT_EQ(counts(under(plain, {-1, 0, 0, 1})), counts(plain)) << "two together";
    EXPECT_EQ(counts(under(plain, {-1, 7, 7, 7})), counts(plain)) << "all together";
    EXPECT_EQ(counts(under(nested, {-1, 3, 3, -1})), counts(nested)) << "one in another";
    EXPECT_EQ(counts(under(nested, {-1, -1, 3, 3})), counts(nested)) << "inside one alone";
  }
}

TEST(Program, GathersAUnitThatIsLeftOutOfTheOrderNowhere) {
  const auto units = units_of(3, over_one_axis(optim_grads_params));
  const auto program = Program::build(units, under_a_root(2), {});
  EXPECT_EQ(calls(program), (std::vector<int64_t>{4, 2, 0}));
  EXPECT_EQ(program.bytes().model_weights, 3 * 128) << "but it keeps its bytes";
  EXPECT_EQ(program.slots_of(2).parameters, kNone);
}

TEST(Program, NeitherReducesNorKeepsGradientsOfFrozenGroups) {
  auto units = units_of(2, over_one_axis(optim_grads_params));
  units[1].groups.front().trainable = false;
  const auto program = Program::build(units, under_a_root(2), {});
  EXPECT_EQ(calls(program), (std::vector<int64_t>{4, 1, 0}));
  EXPECT_EQ(program.bytes().main_gradients, 128);
  EXPECT_EQ(program.slots_of(1).gradients, kNone);
}

// ---- bytes
// ---------------------------------------------------------------------------------------

TEST(Program, TakesTheBytesThatOneCountsByHand) {
  // Three units of 64 elements of 4 bytes: 256 in full, 128 of two ranks, 64 of four.
  struct Expected {
    Spreading spreading;
    int64_t model, gradients, arena;
  };
  const Expected all[] = {
      {over_one_axis(no_shard), 768, 768, 0},
      {over_one_axis(optim), 768, 768, 0},
      {over_one_axis(optim_grads), 768, 384, 768},
      {over_one_axis(optim_grads_params), 384, 384, 5 * 256},
      {over_one_axis(optim_grads_params, 4), 192, 192, 5 * 256},
      {over_two_axes(optim_grads_params, no_shard), 384, 384, 5 * 256},
      {over_two_axes(optim_grads_params, optim), 384, 384, 5 * 256},
      {over_two_axes(optim_grads_params, optim_grads_params), 192, 192, 5 * 256},
  };
  for (const auto& [spreading, model, gradients, arena] : all) {
    const auto bytes = three_passes(spreading).bytes();
    EXPECT_EQ(bytes.model_weights, model) << spreading.name;
    EXPECT_EQ(bytes.main_gradients, gradients) << spreading.name;
    EXPECT_EQ(bytes.main_weights, 0) << spreading.name;
    EXPECT_EQ(bytes.arena, arena) << spreading.name;
    EXPECT_EQ(bytes.rest(), model + gradients) << spreading.name;
    EXPECT_EQ(bytes.peak(), model + gradients + arena) << spreading.name;
  }
}

TEST(Program, CountsMainWeightsAndStagesWhereDtypesDiffer) {
  const auto build = [](const Spreading& spreading) {
    auto units = units_of(3, spreading, 128);
    for (auto& unit : units) {
      unit.groups.front().bytes = {.model = 2, .main = 4, .gradient = 4, .reduce = 2};
      unit.groups.front().shares_weight = false;
      unit.groups.front().reduces_in_place = false;
    }
    return Program::build(units, under_a_root(3), {}).bytes();
  };
  const auto zero3 = build(over_one_axis(optim_grads_params));
  EXPECT_EQ(zero3.model_weights, 3 * 64 * 2);
  EXPECT_EQ(zero3.main_weights, 3 * 64 * 4);
  EXPECT_EQ(zero3.main_gradients, 3 * 64 * 4);
  EXPECT_EQ(zero3.arena, 5 * 256) << "the last unit's gradients come when the first has gone";
  const auto zero1 = build(over_one_axis(optim));
  EXPECT_EQ(zero1.main_weights, 3 * 64 * 4);
  EXPECT_EQ(zero1.main_gradients, 3 * 128 * 4);
  EXPECT_EQ(zero1.arena, 256) << "one stage serves all groups";
  const auto hfsdp = build(over_two_axes(optim_grads_params, optim));
  EXPECT_EQ(hfsdp.main_weights, 3 * 32 * 4);
  EXPECT_EQ(hfsdp.arena, 5 * 256 + 256) << "and a stage for the outer axis, aligned";
}

TEST(Program, NeedsLessTheMoreItShards) {
  for (const bool has_root : {false, true}) {
    for (const int units : {8, 9, 16, 40}) {
      for (const int64_t ranks : {2, 4, 8}) {
        std::vector<int64_t> peaks;
        for (const auto strategy : {optim_grads_params, optim_grads, optim, no_shard}) {
          const int count = units + (has_root ? 1 : 0);
          const std::vector<int32_t> apart(static_cast<size_t>(count), kNone);
          const auto order = has_root ? under_a_root(count) : order_of_tree(apart);
          const auto all = units_of(count, over_one_axis(strategy, ranks), 4096);
          peaks.push_back(Program::build(all, order, {}).bytes().peak());
        }
        EXPECT_TRUE(std::is_sorted(peaks.begin(), peaks.end())) << units << " at " << ranks;
        EXPECT_LT(peaks.front(), peaks.back());
      }
    }
  }
}

TEST(Program, RefusesABudgetBelowThePeakAndAcceptsOneAtIt) {
  const auto units = units_of(3, over_one_axis(optim_grads_params));
  const int64_t peak = Program::build(units, under_a_root(3), {}).bytes().peak();
  EXPECT_NO_THROW(Program::build(units, under_a_root(3), {.budget = peak}));
  const auto refusal = words<std::runtime_error>(units, under_a_root(3), {.budget = peak - 1});
  EXPECT_TRUE(contains(refusal, std::to_string(peak) + " bytes")) << refusal;
  EXPECT_TRUE(contains(refusal, "budget of " + std::to_string(peak - 1))) << refusal;
}

// ---- orders
// --------------------------------------------------------------------------------------

TEST(Program, RefusesOrdersThatDoNotNestInWords) {
  const auto units = units_of(2, over_one_axis(optim_grads_params));
  using Mistake = std::invalid_argument;
  EXPECT_TRUE(
      contains(words<Mistake>(units, {{0, false}}), "leaves unit 0 without having entered"));
  EXPECT_TRUE(contains(
      words<Mistake>(units, {{0, true}, {1, true}, {0, false}, {1, false}}),
      "leaves unit 0 without having entered"));
  EXPECT_TRUE(
      contains(words<Mistake>(units, {{0, true}, {1, true}, {1, false}}), "never leaves unit 0"));
  EXPECT_TRUE(contains(words<Mistake>(units, {{2, true}, {2, false}}), "names unit 2 of 2"));
  EXPECT_TRUE(contains(words<Mistake>(units, {{-1, true}, {-1, false}}), "names unit -1"));
}

TEST(Program, OrdersATreeByTheNumbersOfItsUnits) {
  const CallOrder expected{{1, true},  {0, true},  {0, false}, {2, true},
                           {2, false}, {1, false}, {3, true},  {3, false}};
  EXPECT_EQ(order_of_tree(std::vector<int32_t>{1, kNone, 1, kNone}), expected);
}

}  // namespace
}  // namespace sherd
