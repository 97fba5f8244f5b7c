// SPDX-License-Identifier: Apache-2.0
// Brute force, tested: it finds what was broken by hand, and its shortcuts find what the search of
// all interleavings finds.
#include "plan/interleavings.h"

#include <gtest/gtest.h>

#include "plan/mutations.h"
#include "plan/program_examples.h"
#include "plan/proof.h"

namespace sherd {
namespace {

using enum Strategy;
using namespace testing;

Program example(const Spreading& spreading) {
  return Program::build(units_of(3, spreading), under_a_root(3), {});
}

Instruction& find(Section& section, Action action, int32_t unit) {
  const auto found = std::find_if(
      section.instructions.begin(), section.instructions.end(),
      [&](const Instruction& each) { return each.action == action && each.unit == unit; });
  return *found;
}

/// All sections of one kind: a mistake of the builder is in each of them.
template <class Change>
void change_all(std::vector<Section>& sections, Action action, int32_t unit, Change change) {
  for (auto& section : sections) change(find(section, action, unit));
}

/// The event after which the new weights are there.
int32_t published(const Program& program) {
  return program.update().instructions.back().signals;
}

std::string found_in(const Program& program) {
  const auto violation = find_violation(program, 10, 1);
  return violation ? violation->why : "";
}

TEST(Interleavings, FindAGatherThatDoesNotWaitForTheSlotsLastReader) {
  auto program = Program::build(
      units_of(4, over_one_axis(optim_grads_params)), under_a_root(4), {.prefetch_depth = 0});
  change_all(ProgramMutation::forward(program), Action::gather, 2, [](Instruction& gather) {
    gather.waits.clear();
  });
  EXPECT_NE(found_in(program).find("overwrites the parameters of 'u1.w'"), std::string::npos)
      << found_in(program);
}

TEST(Interleavings, FindAComputeThatDoesNotWaitForItsGather) {
  auto program = example(over_one_axis(optim_grads_params));
  change_all(ProgramMutation::backward(program), Action::wait, 1, [](Instruction& wait) {
    wait.waits.clear();
  });
  EXPECT_EQ(found_in(program).substr(0, 5), "wait:") << found_in(program);
}

TEST(Interleavings, FindAReductionThatDoesNotWaitForTheGradients) {
  auto program = example(over_one_axis(optim));
  auto& last = ProgramMutation::backward(program).back();
  find(last, Action::reduce, 2).waits.clear();
  EXPECT_NE(found_in(program).find("the main gradient of 'u2.w'"), std::string::npos)
      << found_in(program);
}

TEST(Interleavings, FindAnUpdateThatDoesNotWaitForTheReductions) {
  auto program = example(over_two_axes(optim_grads_params, no_shard));
  for (auto& section : ProgramMutation::backward(program)) {
    for (auto& each : section.instructions) {
      if (each.action == Action::drain) each.waits.clear();
    }
  }
  EXPECT_NE(found_in(program).find("still runs"), std::string::npos) << found_in(program);
}

TEST(Interleavings, FindWeightsThatWereNotRefreshed) {
  auto program = example(over_one_axis(optim));
  for (auto& section : ProgramMutation::forward(program)) {
    std::erase_if(section.instructions, [](const Instruction& each) {
      return each.action == Action::refresh && each.unit == 1;
    });
  }
  EXPECT_NE(found_in(program).find("older than its main weight"), std::string::npos);
}

TEST(Interleavings, FindAGatherThatReadsShardsBeforeThePreviousWritesAreDone) {
  auto program = example(over_one_axis(optim_grads_params));
  for (auto& section : ProgramMutation::forward(program)) {
    for (auto& each : section.instructions) {
      if (each.action == Action::gather) std::erase(each.waits, published(program));
    }
  }
  EXPECT_NE(found_in(program).find("the weight of"), std::string::npos) << found_in(program);
  const auto fault = find_fault(program);
  ASSERT_TRUE(fault);
  EXPECT_NE(fault->why.find("the weight of"), std::string::npos) << fault->why;
}

TEST(Interleavings, FindGradientsThatAreDividedTwice) {
  auto program = example(over_one_axis(no_shard));
  auto& last = ProgramMutation::backward(program).back();
  const auto accumulate = find(last, Action::accumulate, 0);
  last.instructions.insert(last.instructions.end() - 1, accumulate);
  EXPECT_NE(found_in(program).find("not the mean"), std::string::npos) << found_in(program);
}

TEST(Interleavings, FindTwoUnitsInTheSameBytes) {
  auto program = example(over_one_axis(optim_grads_params));
  auto& slots = ProgramMutation::slots(program);
  slots[1].offset = slots[0].offset + 128;  // half of it
  const auto found = found_in(program);
  EXPECT_TRUE(
      found.find("still needed") != std::string::npos ||
      found.find("are being read") != std::string::npos)
      << found;
}

TEST(Interleavings, FindASlotThatIsNeverGivenBack) {
  auto program = example(over_one_axis(optim_grads_params));
  for (auto& section : ProgramMutation::backward(program)) {
    std::erase_if(section.instructions, [](const Instruction& each) {
      return each.action == Action::release && each.unit == 0;
    });
  }
  EXPECT_NE(found_in(program).find("left over"), std::string::npos) << found_in(program);
}

TEST(Interleavings, ShortcutsFindWhatTheSearchOfAllFinds) {
  std::mt19937_64 random(5);
  int found = 0;
  for (const auto& spreading :
       {over_one_axis(optim_grads), over_one_axis(optim_grads_params),
        over_two_axes(optim_grads_params, optim)}) {
    const auto base = Program::build(units_of(2, spreading), under_a_root(2), {});
    for (int i = 0; i < 200; ++i) {
      Program program = base;
      const auto what = mutate(program, static_cast<Mutation>(random() % kMutations), random);
      if (!what) continue;
      for (const auto& sequence : typical_sequences(program)) {
        const Interleavings interleavings(program, sequence);
        const auto search = interleavings.all(1'000'000);
        ASSERT_TRUE(search.complete || search.violation);
        // What is left over when a section ends is no matter of interleaving.
        if (const auto left = interleavings.in_order(); left && left->instruction == kNone)
          continue;
        EXPECT_EQ(interleavings.one_slow().has_value(), search.violation.has_value()) << *what;
        found += search.violation ? 1 : 0;
      }
    }
  }
  EXPECT_GT(found, 300);
}

}  // namespace
}  // namespace sherd
