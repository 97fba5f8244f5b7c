// SPDX-License-Identifier: Apache-2.0
// The proof against brute force: whatever is done to a program, either the proof refuses it or no
// interleaving of its streams goes wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

#include "plan/example_programs.h"
#include "plan/interleavings.h"
#include "plan/mutations.h"
#include "plan/program_examples.h"
#include "plan/proof.h"

namespace sherd {
namespace {

using namespace testing;

constexpr int64_t kMostStates = 20'000;  // of one sequence

/// Every interleaving where they are few enough, and the worst of them in any case.
std::optional<Violation> violation_of(const Program& program, uint64_t seed) {
  if (auto violation = find_violation(program, 3, seed)) return violation;
  for (const auto& sequence : typical_sequences(program)) {
    if (auto search = Interleavings(program, sequence).all(kMostStates); search.violation) {
      return search.violation;
    }
  }
  return std::nullopt;
}

void expect_words(const Refusal& refusal, const Program& program, const std::string& what) {
  EXPECT_FALSE(refusal.section.empty()) << what;
  EXPECT_FALSE(refusal.why.empty()) << what;
  EXPECT_TRUE(refusal.to_text().find(refusal.why) != std::string::npos) << what;
  if (refusal.section == "memory") return;
  const auto sections = program.sections();
  const auto named = std::find_if(sections.begin(), sections.end(), [&](const Section* section) {
    return section->name == refusal.section;
  });
  ASSERT_NE(named, sections.end()) << what << ": " << refusal.to_text();
  if (refusal.instruction == kNone) return;
  EXPECT_LT(refusal.instruction, std::ssize((*named)->instructions)) << what;
}

/// What became of the mutations of one kind.
struct Tally {
  int refused = 0;
  int harmless = 0;    // and accepted
  int too_strict = 0;  // refused, though brute force finds no harm in it
};

bool is_never_harmless(Mutation kind) {
  return kind == Mutation::swap_release_with_compute || kind == Mutation::drop_drain ||
         kind == Mutation::flip_overwrite || kind == Mutation::change_slot ||
         kind == Mutation::drop_transpose || kind == Mutation::read_another_copy ||
         kind == Mutation::publish_before_exchange;
}

void try_one(const ExampleProgram& example, Mutation kind, std::mt19937_64& random, Tally& tally) {
  Program program = example.program;
  const auto done = mutate(program, kind, random);
  if (!done) return;
  const auto what = example.name + ": " + *done;
  if (const auto refusal = find_fault(program)) {
    expect_words(*refusal, program, what);
    ++tally.refused;
    tally.too_strict += find_violation(program, 1, random()) ? 0 : 1;
    return;
  }
  const auto violation = violation_of(program, random());
  EXPECT_FALSE(violation) << what << "\nis accepted, but " << violation->to_text();
  ++tally.harmless;
}

TEST(Proof, AcceptsEveryExampleAndSoDoesBruteForce) {
  int complete = 0;
  for (const auto& [name, program] : example_programs()) {
    const auto refusal = find_fault(program);
    EXPECT_FALSE(refusal) << name << ": " << refusal->to_text();
    const auto violation = find_violation(program, 10, 1);
    EXPECT_FALSE(violation) << name << ": " << violation->to_text();
    for (const auto& sequence : typical_sequences(program)) {
      const auto search = Interleavings(program, sequence).all(kMostStates);
      EXPECT_FALSE(search.violation) << name << ": " << search.violation->to_text();
      complete += search.complete ? 1 : 0;
    }
  }
  EXPECT_GT(complete, 400) << "of the sequences should be small enough to be seen in full";
}

TEST(Proof, FollowsEverySectionThatARunMayChoose) {
  auto units = units_of(3, over_one_axis(Strategy::optim_grads_params));
  units[1].keep_gathered = true;
  const auto program = Program::build(units, under_a_root(3), {});
  std::set<const Section*> followed;
  for (const auto& sequence : typical_sequences(program)) {
    followed.insert(sequence.begin(), sequence.end());
  }
  for (const bool one : {false, true}) {
    for (const bool other : {false, true}) {
      // Parameters that an update changed are no longer gathered; the first backward finds those
      // that are.
      for (const bool gathered : {false, true}) {
        EXPECT_TRUE(
            (one && gathered) || followed.contains(&program.forward({one, other, gathered})));
        EXPECT_TRUE(
            (one && !gathered) || followed.contains(&program.backward({one, other, gathered})));
      }
    }
  }
  EXPECT_TRUE(followed.contains(&program.update()));
}

TEST(Proof, RefusesASlotThatReachesBeyondTheArena) {
  const auto units = units_of(3, over_one_axis(Strategy::optim_grads_params));
  auto program = Program::build(units, under_a_root(3), {});
  ProgramMutation::slots(program).back().bytes += 1;
  const auto refusal = find_fault(program);
  ASSERT_TRUE(refusal);
  EXPECT_NE(refusal->why.find("beyond the arena"), std::string::npos) << refusal->to_text();
}

TEST(Proof, RefusesWhatGoesWrongOnAnyInterleaving) {
  std::mt19937_64 random(20240607);
  const auto examples = example_programs();
  std::array<Tally, kMutations> tallies{};
  for (const auto& example : examples) {
    for (size_t kind = 0; kind < kMutations; ++kind) {
      try_one(example, static_cast<Mutation>(kind), random, tallies[kind]);
    }
  }
  int total = 0;
  std::printf("%-28s %8s %10s %9s\n", "mutation", "refused", "too strict", "harmless");
  for (size_t i = 0; i < kMutations; ++i) {
    const auto kind = static_cast<Mutation>(i);
    const auto& tally = tallies[i];
    total += tally.refused + tally.harmless;
    std::printf(
        "%-28s %8d %10d %9d\n", to_text(kind), tally.refused, tally.too_strict, tally.harmless);
    EXPECT_GT(tally.refused, 50) << to_text(kind);
    EXPECT_LT(tally.too_strict, tally.refused / 2) << to_text(kind);
    if (kind == Mutation::alias_slots) continue;  // few pairs may overlap
    EXPECT_EQ(tally.harmless == 0, is_never_harmless(kind)) << to_text(kind);
  }
  EXPECT_GE(total, 1'900);
}

}  // namespace
}  // namespace sherd
