// SPDX-License-Identifier: Apache-2.0
// What a program does when, and in which slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "plan/example_programs.h"
#include "plan/program_examples.h"
#include "plan/proof.h"
#include "sherd/plan/program.h"

namespace sherd {
namespace {

using enum Strategy;
using testing::example_programs;
using testing::over_one_axis;
using testing::over_two_axes;
using testing::under_a_root;
using testing::units_of;

/// The units of a section's instructions with this action, in order.
std::vector<int32_t> units_with(const Section& section, Action action) {
  std::vector<int32_t> units;
  for (const auto& instruction : section.instructions) {
    if (instruction.action == action) units.push_back(instruction.unit);
  }
  return units;
}

/// The units that are gathered on entering a unit for the first time in a section.
std::vector<int32_t> gathered_on_entering(const Section& section, int32_t unit) {
  std::vector<int32_t> units;
  for (const auto& boundary : section.boundaries) {
    if (boundary.unit != unit || boundary.kind != Boundary::Kind::enter) continue;
    for (int32_t i = boundary.begin; i < boundary.end; ++i) {
      const auto& instruction = section.instructions[static_cast<size_t>(i)];
      if (instruction.action == Action::gather) units.push_back(instruction.unit);
    }
    break;
  }
  return units;
}

int64_t outer_reductions(const Section& section) {
  return std::count_if(
      section.instructions.begin(), section.instructions.end(), [](const Instruction& each) {
        return each.action == Action::reduce && each.axis == AxisKind::outer;
      });
}

using Units = std::vector<int32_t>;

// ---- slots
// ---------------------------------------------------------------------------------------

TEST(ProgramSchedule, EqualUnitsTakeOneParameterSlotMoreThanTheDepthAndTwoForGradients) {
  for (const int64_t depth : {0, 1, 2, 3}) {
    const auto units = units_of(9, over_one_axis(optim_grads_params));
    const auto program = Program::build(units, under_a_root(9), {.prefetch_depth = depth});
    std::set<int32_t> parameters;
    std::set<int32_t> gradients;
    for (int32_t unit = 1; unit < 9; ++unit) {
      parameters.insert(program.slots_of(unit).parameters);
      gradients.insert(program.slots_of(unit).gradients);
    }
    EXPECT_EQ(std::ssize(parameters), depth + 1);
    EXPECT_EQ(gradients.size(), 2u);
    EXPECT_FALSE(parameters.contains(program.slots_of(0).parameters)) << "the root's is its own";
    EXPECT_FALSE(gradients.contains(program.slots_of(0).gradients));
    EXPECT_EQ(program.slots().size(), parameters.size() + gradients.size() + 2);
  }
}

TEST(ProgramSchedule, PrefetchIsCountedInUnitsAndNotInElements) {
  const auto units_resident = [](int64_t elements, int64_t depth) {
    const auto units = units_of(9, over_one_axis(optim_grads_params), elements);
    const auto program = Program::build(units, under_a_root(9), {.prefetch_depth = depth});
    int64_t bytes = 0;
    std::set<int32_t> slots;
    for (int32_t unit = 1; unit < 9; ++unit) slots.insert(program.slots_of(unit).parameters);
    for (const int32_t slot : slots) bytes += program.slots()[static_cast<size_t>(slot)].bytes;
    return bytes / (elements * units.front().groups.front().bytes.model);
  };
  for (const int64_t depth : {0, 1, 2}) {
    for (const int64_t elements : {64, 1 << 20, 1 << 30}) {
      EXPECT_EQ(units_resident(elements, depth), depth + 1) << elements << " elements";
    }
  }
}

TEST(ProgramSchedule, UnitsOfUnequalSizeShareTheSlotsAndALargeOneWidensOnlyItsOwn) {
  auto units = units_of(5, over_one_axis(optim_grads_params));
  units[3].groups.front().elements = 1024;
  const auto program = Program::build(units, under_a_root(5), {});
  for (const auto& slot : program.slots()) {
    const auto number = static_cast<int32_t>(&slot - program.slots().data());
    const auto& large = program.slots_of(3);
    const bool is_large = number == large.parameters || number == large.gradients;
    EXPECT_EQ(slot.bytes, is_large ? 4096 : 256) << slot.name;
  }
}

TEST(ProgramSchedule, AtMostTwoUnitsBesidesTheRootHoldFullGradients) {
  const auto program = Program::build(units_of(9, over_one_axis(optim_grads)), under_a_root(9), {});
  const auto& backward = program.backward({});
  std::set<int32_t> alive;  // slots that are taken, in the order of issue
  for (const auto& instruction : backward.instructions) {
    if (instruction.action != Action::open || instruction.unit == 0) continue;
    alive.insert(instruction.slot);
    EXPECT_LE(alive.size(), 2u);
    // A slot is taken again only when its last reduction is done.
    const auto& slot = program.slots()[static_cast<size_t>(instruction.slot)].name;
    EXPECT_TRUE(std::any_of(instruction.waits.begin(), instruction.waits.end(), [&](int32_t event) {
      return program.events()[static_cast<size_t>(event)] == "reduced(" + slot + ")";
    }));
  }
}

// ---- gathers
// -------------------------------------------------------------------------------------

TEST(ProgramSchedule, AModuleOutsideEveryUnitPrefetchesNothingAndTakesNoSlotOfOthers) {
  for (const int64_t depth : {0, 1, 3}) {
    const auto units = units_of(5, over_one_axis(optim_grads_params));
    const auto program = Program::build(units, under_a_root(5), {.prefetch_depth = depth});
    for (const auto* section : program.sections()) {
      for (const auto& boundary : section->boundaries) {
        if (boundary.unit != 0) continue;
        for (int32_t i = boundary.begin; i < boundary.end; ++i) {
          EXPECT_EQ(section->instructions[static_cast<size_t>(i)].unit, 0) << section->name;
        }
      }
    }
    const auto& forward = program.forward({});
    EXPECT_EQ(
        gathered_on_entering(forward, 1), depth == 0   ? Units({1})
                                          : depth == 1 ? Units({1, 2})
                                                       : Units({1, 2, 3, 4}));
    EXPECT_EQ(
        gathered_on_entering(program.backward({}), 4), depth == 0   ? Units({4})
                                                       : depth == 1 ? Units({4, 3})
                                                                    : Units({4, 3, 2, 1}));
  }
}

TEST(ProgramSchedule, GathersAheadOnlyWhatNestsNothing) {
  // The root calls u1, then u2, which calls u3.
  const auto order = order_of_tree(Units{kNone, 0, 0, 2});
  const auto program = Program::build(units_of(4, over_one_axis(optim_grads_params)), order, {});
  EXPECT_EQ(gathered_on_entering(program.forward({}), 1), Units({1, 3}));
  EXPECT_EQ(gathered_on_entering(program.forward({}), 2), Units({2}));
  EXPECT_EQ(gathered_on_entering(program.backward({}), 2), Units({2}));
  EXPECT_EQ(gathered_on_entering(program.backward({}), 3), Units({3, 1}));
}

TEST(ProgramSchedule, HonoursAnExplicitPrefetchList) {
  auto units = units_of(5, over_one_axis(optim_grads_params));
  units[1].prefetch = {3, 2};
  const auto program = Program::build(units, under_a_root(5), {});
  const auto& forward = program.forward({});
  EXPECT_EQ(gathered_on_entering(forward, 1), Units({1, 3, 2}));
  EXPECT_EQ(gathered_on_entering(forward, 2), Units()) << "the next is gathered already";
  EXPECT_EQ(gathered_on_entering(forward, 3), Units({4}));
}

TEST(ProgramSchedule, HonoursAnExplicitPrefetchListInTheBackward) {
  auto units = units_of(5, over_one_axis(optim_grads_params));
  units[3].backward_prefetch = {1, 4, 2};
  const auto program = Program::build(units, under_a_root(5), {});
  const auto& backward = program.backward({});
  EXPECT_EQ(gathered_on_entering(backward, 4), Units({4, 3}));
  EXPECT_EQ(gathered_on_entering(backward, 3), Units({1, 2})) << "unit 4 does not come again";
  EXPECT_EQ(gathered_on_entering(backward, 2), Units()) << "the next is gathered already";
  EXPECT_EQ(gathered_on_entering(program.forward({}), 3), Units({4})) << "as without a list";
}

bool share_bytes(const Program& program, int32_t slot, const std::string& event) {
  const auto& mine = program.slots()[static_cast<size_t>(slot)];
  return std::any_of(program.slots().begin(), program.slots().end(), [&](const Slot& other) {
    return event.find("(" + other.name + ")") != std::string::npos &&
           mine.offset < other.offset + other.bytes && other.offset < mine.offset + mine.bytes;
  });
}

TEST(ProgramSchedule, AGatherWaitsForAReductionOnlyWhereItTakesItsBytes) {
  for (const auto& [name, program] : example_programs()) {
    for (const auto* section : program.sections()) {
      for (const auto& instruction : section->instructions) {
        if (instruction.action != Action::gather && instruction.action != Action::refresh) continue;
        for (const int32_t event : instruction.waits) {
          const auto& what = program.events()[static_cast<size_t>(event)];
          EXPECT_TRUE(
              what == "published" || what.starts_with("released(") ||
              what.starts_with("refreshed(") || share_bytes(program, instruction.slot, what))
              << name << ", " << section->name << ": " << what;
        }
      }
    }
  }
}

TEST(ProgramSchedule, AUnitThatStaysGatheredIsGatheredOnce) {
  auto units = units_of(3, over_one_axis(optim_grads_params));
  units[2].keep_gathered = true;
  const auto program = Program::build(units, under_a_root(3), {});
  EXPECT_EQ(units_with(program.forward({.changed = true}), Action::gather), Units({0, 1, 2}));
  EXPECT_EQ(units_with(program.forward({.changed = true}), Action::release), Units({1, 0}));
  EXPECT_EQ(units_with(program.forward({.still_gathered = true}), Action::gather), Units({0, 1}));
  EXPECT_EQ(units_with(program.backward({.still_gathered = true}), Action::gather), Units({0, 1}));
  EXPECT_EQ(
      units_with(program.backward({.still_gathered = true}), Action::release), Units({2, 1, 0}));
  EXPECT_EQ(
      units_with(program.backward({.still_gathered = false}), Action::gather), Units({0, 2, 1}));
  const ForwardFlags evaluation{.train = false};
  EXPECT_EQ(units_with(program.forward(evaluation), Action::release), Units({1, 2, 0}));
  EXPECT_EQ(program.traffic().all_gather.calls, 5);
}

TEST(ProgramSchedule, RefreshesTheModelWeightOnlyAfterAnUpdate) {
  const auto units = units_of(3, over_one_axis(optim));
  const auto program = Program::build(units, under_a_root(3), {});
  EXPECT_EQ(units_with(program.forward({.changed = true}), Action::refresh), Units({0, 1, 2}));
  EXPECT_EQ(units_with(program.forward({.changed = false}), Action::refresh), Units());
  EXPECT_EQ(units_with(program.backward({}), Action::refresh), Units());
}

// ---- recompute
// -----------------------------------------------------------------------------------

TEST(ProgramSchedule, UnitsOfOneRecomputeStayGatheredUntilTheirOwnBackward) {
  CallOrder order = under_a_root(4);
  order[1].recompute = order[3].recompute = 0;  // u1 and u2, not u3
  const auto units = units_of(4, over_one_axis(optim_grads_params));
  const auto program = Program::build(units, order, {.prefetch_depth = 0});
  const auto& backward = program.backward({});
  EXPECT_EQ(units_with(backward, Action::gather), Units({0, 3, 1, 2}));
  EXPECT_EQ(units_with(backward, Action::release), Units({3, 2, 1, 0}));
  const auto kind = [&](const std::vector<int32_t>& of, size_t position) {
    return backward.boundaries[static_cast<size_t>(of[position])].kind;
  };
  const std::vector<bool> recomputes{false, true, true, false};
  for (size_t position = 0; position < 4; ++position) {
    EXPECT_EQ(kind(backward.entered, position), Boundary::Kind::enter);
    EXPECT_EQ(backward.recomputed[position] != kNone, recomputes[position]);
    if (!recomputes[position]) continue;
    EXPECT_EQ(kind(backward.recomputed, position), Boundary::Kind::recompute);
    EXPECT_LT(backward.recomputed[position], backward.entered[position]);
  }
  EXPECT_LT(backward.recomputed[1], backward.recomputed[2]) << "in the order of the forward";
  EXPECT_NE(program.slots_of(1).parameters, program.slots_of(2).parameters);
}

TEST(ProgramSchedule, AUnitRecomputedAloneNeedsNoBoundaryOfItsOwn) {
  CallOrder order = under_a_root(3);
  order[1].recompute = 0;
  order[3].recompute = 1;
  const auto program = Program::build(units_of(3, over_one_axis(optim_grads_params)), order, {});
  EXPECT_EQ(program.backward({}).recomputed, std::vector<int32_t>(3, kNone));
}

// ---- reductions
// ----------------------------------------------------------------------------------

TEST(ProgramSchedule, AUnitCalledTwiceIsReducedOnceAfterItsSecondBackward) {
  const CallOrder order{{0, true},  {1, true}, {1, false}, {2, true},
                        {2, false}, {1, true}, {1, false}, {0, false}};
  for (const auto strategy : {optim, optim_grads, optim_grads_params}) {
    const auto program = Program::build(units_of(3, over_one_axis(strategy)), order, {});
    const auto& list = program.backward({}).instructions;
    EXPECT_EQ(units_with(program.backward({}), Action::compute), Units({1, 2, 1, 0}));
    EXPECT_EQ(units_with(program.backward({}), Action::reduce), Units({2, 1, 0}));
    const auto computes = [](const Instruction& each) {
      return each.action == Action::compute && each.unit == 1;
    };
    const auto first = std::find_if(list.begin(), list.end(), computes);
    const auto second = std::find_if(first + 1, list.end(), computes);
    const auto reduce = std::find_if(list.begin(), list.end(), [](const Instruction& each) {
      return each.action == Action::reduce && each.unit == 1;
    });
    EXPECT_EQ(first->signals, kNone);
    EXPECT_GT(reduce, second);
    ASSERT_EQ(reduce->waits.size(), 1u);
    EXPECT_EQ(reduce->waits.front(), second->signals);
  }
}

TEST(ProgramSchedule, ReducesOverAReplicatedOuterAxisInTheLastPassOnly) {
  for (const auto outer : {no_shard, optim}) {
    const auto units = units_of(3, over_two_axes(optim_grads_params, outer));
    const auto program = Program::build(units, under_a_root(3), {.micro_batches = 3});
    EXPECT_EQ(outer_reductions(program.backward({.first = true, .last = false})), 0);
    EXPECT_EQ(outer_reductions(program.backward({.first = false, .last = false})), 0);
    EXPECT_EQ(outer_reductions(program.backward({.first = false, .last = true})), 3);
  }
}

TEST(ProgramSchedule, TheFirstPassOverwritesAndOthersAdd) {
  const auto program = Program::build(units_of(3, over_one_axis(optim_grads)), under_a_root(3), {});
  for (const bool first : {false, true}) {
    for (const auto& instruction : program.backward({.first = first}).instructions) {
      if (instruction.action != Action::accumulate) continue;
      EXPECT_EQ(instruction.overwrite, first);
    }
  }
}

// ---- all programs
// --------------------------------------------------------------------------------

TEST(ProgramSchedule, BoundariesHoldEveryInstructionOnceInOrder) {
  for (const auto& [name, program] : example_programs()) {
    for (const auto* section : program.sections()) {
      int32_t end = 0;
      for (const auto& boundary : section->boundaries) {
        EXPECT_EQ(boundary.begin, end) << name << ", " << section->name;
        end = boundary.end;
      }
      EXPECT_EQ(end, std::ssize(section->instructions)) << name << ", " << section->name;
    }
  }
}

TEST(ProgramSchedule, EqualUnitsKeepGradientsApartSoThatNoGatherWaitsForAReduction) {
  for (const int64_t depth : {0, 1, 2, 3}) {
    const auto program = Program::build(
        units_of(9, over_one_axis(optim_grads_params)), under_a_root(9), {.prefetch_depth = depth});
    for (const auto* section : program.sections()) {
      for (const auto& instruction : section->instructions) {
        if (instruction.action != Action::gather) continue;
        for (const int32_t event : instruction.waits) {
          const auto& what = program.events()[static_cast<size_t>(event)];
          EXPECT_FALSE(what.starts_with("reduced(") || what.starts_with("sent(")) << what;
        }
      }
    }
  }
}

TEST(ProgramSchedule, SlotsOfAProgramFillTheArenaToItsEnd) {
  for (const auto& [name, program] : example_programs()) {
    int64_t end = 0;
    for (const auto& slot : program.slots()) {
      EXPECT_EQ(slot.offset % 256, 0) << name << ", " << slot.name;
      end = std::max(end, slot.offset + slot.bytes);
    }
    EXPECT_EQ(end, program.bytes().arena) << name;
    EXPECT_GE(program.bytes().arena, program.bytes().bound) << name;
  }
}

TEST(ProgramSchedule, AnOrderOfItsOwnForEvaluationSharesTheArena) {
  // Evaluation calls the units backwards, and leaves one out.
  const auto units = units_of(5, over_one_axis(optim_grads_params));
  CallOrder evaluation{{0, true}};
  for (const int32_t unit : {4, 3, 1}) {
    evaluation.push_back({unit, true});
    evaluation.push_back({unit, false});
  }
  evaluation.push_back({0, false});
  const auto program =
      Program::build(units, under_a_root(5), {}, {.evaluation = evaluation, .before = nullptr});
  EXPECT_EQ(program.order(true), under_a_root(5));
  EXPECT_EQ(program.order(false), evaluation);
  EXPECT_EQ(program.forward({.train = false}).boundaries.size(), 8u);
  EXPECT_EQ(program.forward({}).boundaries.size(), 10u);
}

TEST(ProgramSchedule, AddressesAreKeptWhereANewOrderAllowsItAndElseNamed) {
  auto units = units_of(4, over_one_axis(optim_grads_params));
  const auto first = Program::build(units, under_a_root(4), {});
  const auto again =
      Program::build(units, under_a_root(4), {.micro_batches = 3}, {.before = &first});
  for (int32_t unit = 0; unit < 4; ++unit) {
    const auto offset = [&](const Program& program) {
      return program.slots()[static_cast<size_t>(program.slots_of(unit).parameters)].offset;
    };
    EXPECT_EQ(offset(again), offset(first));
  }
  // Units 1 and 3 take turns in one slot; deeper prefetch needs both.
  try {
    Program::build(units, under_a_root(4), {.prefetch_depth = 2}, {.before = &first});
    FAIL() << "two live owners at one address";
  } catch (const std::runtime_error& error) {
    const std::string words = error.what();
    EXPECT_NE(words.find("the addresses can't be kept"), std::string::npos) << words;
    EXPECT_NE(words.find("'" + units[1].name + "'"), std::string::npos) << words;
    EXPECT_NE(words.find("'" + units[3].name + "'"), std::string::npos) << words;
  }
}

TEST(ProgramSchedule, EagerMemoryTakesWhatIsInUseAtOnce) {
  const auto units = units_of(9, over_one_axis(optim_grads_params));
  const auto planned = Program::build(units, under_a_root(9), {});
  const auto eager = Program::build(units, under_a_root(9), {.memory = MemoryKind::eager});
  EXPECT_EQ(eager.bytes().arena, planned.bytes().bound);
  EXPECT_EQ(eager.traffic(), planned.traffic());
  EXPECT_NE(eager.fingerprint(), planned.fingerprint());
}

}  // namespace
}  // namespace sherd
