// SPDX-License-Identifier: Apache-2.0
// Programs of groups in fp8: bytes on the wire, transposed copies, exchanged scales.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "plan/price.h"
#include "plan/program_examples.h"
#include "sherd/plan/program.h"

namespace sherd {
namespace {

using enum Strategy;
using testing::over_one_axis;
using testing::over_two_axes;
using testing::Spreading;
using testing::under_a_root;
using testing::units_of;

constexpr int64_t kElements = 4096;

std::vector<UnitSpec> encoded(int count, const Spreading& spreading, WeightEncoding encoding) {
  auto units = units_of(count, spreading, kElements);
  for (auto& unit : units) {
    unit.groups.front().bytes = {1, 4, 4, 4};
    unit.groups.front().shares_weight = false;
    unit.groups.front().encoding = encoding;
  }
  return units;
}

constexpr WeightEncoding kOneScale{.exchanged = 3, .transposes = true};
constexpr WeightEncoding kBlocks{.block = 256, .scale_bytes = 4, .transposes = true};
constexpr WeightEncoding kTwoWays{.block = 32, .scale_bytes = 1, .two_ways = true};

std::vector<Instruction> of_action(const Section& section, Action action) {
  std::vector<Instruction> found;
  for (const auto& instruction : section.instructions) {
    if (instruction.action == action) found.push_back(instruction);
  }
  return found;
}

TEST(Fp8Program, GathersMoveOneByteAnElementAndTheScalesOfBlocks) {
  const auto gathered = [](WeightEncoding encoding, bool backward) {
    const auto program = Program::build(
        encoded(2, over_one_axis(optim_grads_params), encoding), under_a_root(2), {});
    const auto& section = backward ? program.backward({}) : program.forward({});
    return of_action(section, Action::gather).front().bytes;
  };
  for (const bool backward : {false, true}) {
    EXPECT_EQ(gathered(kOneScale, backward), kElements);
    EXPECT_EQ(gathered(kBlocks, backward), kElements + kElements / 256 * 4);
    EXPECT_EQ(gathered(kTwoWays, backward), (kElements + kElements / 32) * (backward ? 2 : 1));
  }
}

TEST(Fp8Program, ARefreshMovesAllEncodings) {
  const auto refreshed = [](WeightEncoding encoding) {
    const auto program =
        Program::build(encoded(2, over_one_axis(optim), encoding), under_a_root(2), {});
    return of_action(program.forward({.changed = true}), Action::refresh).front().bytes;
  };
  EXPECT_EQ(refreshed(kOneScale), kElements);
  EXPECT_EQ(refreshed(kBlocks), kElements + kElements / 256 * 4);
  EXPECT_EQ(refreshed(kTwoWays), (kElements + kElements / 32) * 2);
}

TEST(Fp8Program, AllScalesOfAMeshAreExchangedOnceAStepOverTheAxesThatTheOptimizerIsShardedOver) {
  struct Case {
    Spreading spreading;
    std::vector<AxisKind> axes;
  };
  for (const auto& [spreading, axes] :
       {Case{over_one_axis(no_shard), {}}, Case{over_one_axis(optim), {AxisKind::inner}},
        Case{over_one_axis(optim_grads_params), {AxisKind::inner}},
        Case{over_two_axes(optim_grads_params, no_shard), {AxisKind::inner}},
        Case{over_two_axes(optim_grads_params, optim), {AxisKind::inner, AxisKind::outer}}}) {
    const auto program = Program::build(encoded(4, spreading, kOneScale), under_a_root(4), {});
    const auto exchanges = of_action(program.update(), Action::exchange);
    std::vector<AxisKind> found;
    for (const auto& exchange : exchanges) {
      found.push_back(exchange.axis);
      EXPECT_EQ(exchange.bytes, 4 * 3 * 4) << "four units with three scales each";
    }
    EXPECT_EQ(found, axes) << spreading.name;
    auto without = program.traffic();
    for (const auto* section : program.step()) {
      const auto its = traffic_of(*section);
      without.all_reduce.calls -= its.all_reduce.calls;
      without.all_reduce.bytes -= its.all_reduce.bytes;
    }
    EXPECT_EQ(without.all_reduce.calls, std::ssize(axes)) << "a step's traffic has them";
    EXPECT_EQ(program.update().instructions.back().action, Action::publish);
  }
}

TEST(Fp8Program, BackwardsTransposeBehindTheGatherAndForwardsDoNot) {
  for (const auto strategy : {no_shard, optim_grads, optim_grads_params}) {
    const auto program =
        Program::build(encoded(4, over_one_axis(strategy), kOneScale), under_a_root(4), {});
    EXPECT_TRUE(of_action(program.forward({}), Action::transpose).empty());
    const auto made = of_action(program.backward({}), Action::transpose);
    ASSERT_EQ(made.size(), 4u);
    for (const auto& one : made) {
      EXPECT_EQ(one.stream, Stream::gather);
      EXPECT_EQ(one.slot, program.slots_of(one.unit).transposed);
      EXPECT_EQ(one.also_reads, program.slots_of(one.unit).parameters);
    }
    for (const auto& one : of_action(program.backward({}), Action::compute)) {
      EXPECT_EQ(one.also_reads, program.slots_of(one.unit).transposed);
    }
    for (const auto& one : of_action(program.forward({}), Action::compute)) {
      EXPECT_EQ(one.also_reads, kNone);
    }
  }
}

TEST(Fp8Program, AUnitThatStaysGatheredIsTransposedButNotGatheredForItsBackward) {
  for (const auto& encoding : {kOneScale, kTwoWays}) {
    auto units = encoded(3, over_one_axis(optim_grads_params), encoding);
    units[1].keep_gathered = true;
    const auto program = Program::build(units, under_a_root(3), {});
    const auto of_first = [](std::vector<Instruction> all) {
      std::erase_if(all, [](const Instruction& one) { return one.unit != 1; });
      return all;
    };
    const auto& backward = program.backward({.still_gathered = true});
    EXPECT_TRUE(of_first(of_action(backward, Action::gather)).empty());
    const auto forward = of_first(of_action(program.forward({}), Action::gather));
    ASSERT_EQ(forward.size(), 1u);
    EXPECT_EQ(forward.front().two_ways, encoding.two_ways) << "for the backward";
    EXPECT_FALSE(of_action(program.forward({.train = false}), Action::gather)[1].two_ways);
    EXPECT_EQ(of_first(of_action(backward, Action::transpose)).size(), encoding.two_ways ? 0u : 1u);
  }
}

TEST(Fp8Program, EqualUnitsTakeTurnsInTwoTransposedSlots) {
  const auto program =
      Program::build(encoded(9, over_one_axis(optim_grads_params), kOneScale), under_a_root(9), {});
  std::set<int32_t> slots;
  for (int32_t unit = 1; unit < 9; ++unit) slots.insert(program.slots_of(unit).transposed);
  EXPECT_EQ(slots.size(), 2u);
  for (const int32_t slot : slots) {
    EXPECT_EQ(program.slots()[static_cast<size_t>(slot)].bytes, kElements);
  }
}

TEST(Fp8Program, BytesAtRestHaveTheScales) {
  const auto weights = [](WeightEncoding encoding) {
    return Program::build(
               encoded(2, over_one_axis(optim_grads_params, 4), encoding), under_a_root(2), {})
        .bytes()
        .model_weights;
  };
  EXPECT_EQ(weights(kOneScale), 2 * (kElements / 4 + 3 * 4));
  EXPECT_EQ(weights(kBlocks), 2 * (kElements / 4 + kElements / 4 / 256 * 4));
  EXPECT_EQ(weights(kTwoWays), 2 * 2 * (kElements / 4 + kElements / 4 / 32));
}

TEST(Fp8Program, AnotherEncodingIsAnotherFingerprint) {
  std::set<uint64_t> fingerprints;
  for (const auto& encoding : {WeightEncoding(), kOneScale, kBlocks, kTwoWays}) {
    const auto units = encoded(2, over_one_axis(optim_grads_params), encoding);
    fingerprints.insert(Program::build(units, under_a_root(2), {}).fingerprint());
  }
  EXPECT_EQ(fingerprints.size(), 4u);
}

TEST(Fp8Program, TranspositionsTakeMemoryBandwidthAndExchangesTheNetwork) {
  const auto program = Program::build(
      encoded(2, over_one_axis(optim_grads_params, 4), kOneScale), under_a_root(2), {});
  Costs costs;
  costs.units.resize(2);
  costs.memory_bandwidth = 1000;
  costs.network.fallback = {.latency = 5, .bandwidth = 1e12};
  const auto step = price(program, costs);
  double transposing = 0, exchanging = 0;
  for (const auto& span : step.spans) {
    if (span.action == Action::transpose) transposing += span.end - span.begin;
    if (span.action == Action::exchange) exchanging += span.end - span.begin;
  }
  EXPECT_DOUBLE_EQ(transposing, 2 * 2 * kElements / 1000.0);
  EXPECT_GE(exchanging, 5) << "at least the latency";
  EXPECT_NE(program.to_text().find("transpose"), std::string::npos);
  EXPECT_NE(program.to_text().find("exchange"), std::string::npos);
}

}  // namespace
}  // namespace sherd
