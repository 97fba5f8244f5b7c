// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/step_state.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

namespace sherd::testing {
namespace {

using Phase = StepState::Phase;

/// A state in each phase.
StepState state_in(Phase phase) {
  StepState state;
  switch (phase) {
    case Phase::resting: break;
    case Phase::forward: state.begin_forward(); break;
    case Phase::backward: state.begin_backward(); break;
    case Phase::failed:
      state.begin_forward();
      state.fail();
      break;
  }
  return state;
}

void run_forward(StepState& state, bool train = true) {
  state.begin_forward();
  state.end_forward();
  state.note_gathered(train);
}

/// Returns whether the gradients of the step are complete.
bool run_backward(StepState& state, bool trains = true) {
  state.set_backward(trains);
  state.begin_backward();
  state.end_backward();
  state.count_backward();
  return trains && state.has_all_backwards();
}

/// What a state has counted, to compare before and after.
std::vector<int64_t> counters(const StepState& state) {
  return {state.step(), state.backwards_done(), state.weight_version()};
}

TEST(StepStateTest, BeginsAtRestWithNothingDone) {
  const StepState state;
  EXPECT_EQ(state.phase(), Phase::resting);
  EXPECT_TRUE(state.is_between_passes());
  EXPECT_FALSE(state.has_failed());
  EXPECT_FALSE(state.has_incomplete_gradients());
  EXPECT_FALSE(state.is_divided());
  EXPECT_TRUE(state.is_between_steps());
  EXPECT_FALSE(state.has_all_backwards());
  EXPECT_EQ(state.micro_batches(), 1);
  EXPECT_EQ(counters(state), (std::vector<int64_t>{0, 0, 0}));
  const auto flags = state.forward_flags(/*train=*/true);
  EXPECT_TRUE(flags.train && !flags.changed && !flags.still_gathered);
  EXPECT_FALSE(state.forward_flags(/*train=*/false).train);
}

TEST(StepStateTest, EachTransitionIsLegalInItsPhaseAndAnErrorInAllOthers) {
  struct Transition {
    const char* name;
    std::function<void(StepState&)> make;
    Phase from;
    Phase to;
  };
  const std::vector<Transition> transitions{
      {"begin_forward", &StepState::begin_forward, Phase::resting, Phase::forward},
      {"end_forward", &StepState::end_forward, Phase::forward, Phase::resting},
      {"begin_backward", &StepState::begin_backward, Phase::resting, Phase::backward},
      {"end_backward", &StepState::end_backward, Phase::backward, Phase::resting},
      {"recover", &StepState::recover, Phase::failed, Phase::resting},
  };
  for (const auto& transition : transitions) {
    for (const auto phase : {Phase::resting, Phase::forward, Phase::backward, Phase::failed}) {
      SCOPED_TRACE(std::string(transition.name) + " in " + std::to_string(static_cast<int>(phase)));
      auto state = state_in(phase);
      ASSERT_EQ(state.phase(), phase);
      const auto before = counters(state);
      if (phase == transition.from) {
        EXPECT_NO_THROW(transition.make(state));
        EXPECT_EQ(state.phase(), transition.to);
      } else {
        EXPECT_THROW(transition.make(state), std::logic_error);
        EXPECT_EQ(state.phase(), phase);
      }
      EXPECT_EQ(counters(state), before);
    }
  }
}

TEST(StepStateTest, AnIllegalTransitionIsNamed) {
  auto state = state_in(Phase::forward);
  try {
    state.end_backward();
    FAIL() << "no error";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("end_backward"), std::string::npos) << error.what();
  }
}

TEST(StepStateTest, RestsInAllPhasesWithoutAPass) {
  EXPECT_TRUE(state_in(Phase::resting).is_between_passes());
  EXPECT_TRUE(state_in(Phase::failed).is_between_passes());
  EXPECT_FALSE(state_in(Phase::forward).is_between_passes());
  EXPECT_FALSE(state_in(Phase::backward).is_between_passes());
  EXPECT_TRUE(state_in(Phase::failed).has_failed());
}

TEST(StepStateTest, FailsOnlyWithAPassUnderWay) {
  for (const auto phase : {Phase::resting, Phase::failed}) {
    auto state = state_in(phase);
    EXPECT_FALSE(state.fail());
    EXPECT_EQ(state.phase(), phase);
  }
  for (const auto phase : {Phase::forward, Phase::backward}) {
    auto state = state_in(phase);
    EXPECT_TRUE(state.fail());
    EXPECT_EQ(state.phase(), Phase::failed);
    EXPECT_FALSE(state.fail());
  }
}

TEST(StepStateTest, AFailedForwardKeepsTheGradientsOfTheStep) {
  StepState state;
  state.set_micro_batches(2);
  run_forward(state);
  EXPECT_FALSE(run_backward(state));
  state.begin_forward();
  state.fail();
  EXPECT_FALSE(state.has_incomplete_gradients());
  EXPECT_EQ(state.backwards_done(), 1);
  state.recover();
  run_forward(state);
  EXPECT_TRUE(run_backward(state));
}

TEST(StepStateTest, AFailedBackwardLeavesGradientsIncompleteUntilTheRecovery) {
  StepState state;
  state.set_micro_batches(3);
  run_forward(state);
  run_backward(state);
  run_forward(state);
  state.set_backward(/*trains=*/true);
  state.begin_backward();
  state.fail();
  EXPECT_TRUE(state.has_incomplete_gradients());
  EXPECT_EQ(state.backwards_done(), 0);
  EXPECT_FALSE(state.forward_flags(true).still_gathered);
  state.recover();
  EXPECT_FALSE(state.has_incomplete_gradients());
  EXPECT_EQ(state.phase(), Phase::resting);
  // The step begins anew.
  state.set_backward(/*trains=*/true);
  EXPECT_TRUE(state.backward_flags().first);
  EXPECT_FALSE(run_backward(state) || run_backward(state));
  EXPECT_TRUE(run_backward(state));
}

TEST(StepStateTest, AFailedBackwardOutsideTheStepLeavesItsGradientsAsTheyWere) {
  StepState state;
  state.set_micro_batches(2);
  run_backward(state);
  state.set_backward(/*trains=*/false);
  state.begin_backward();
  EXPECT_TRUE(state.fail());
  EXPECT_FALSE(state.has_incomplete_gradients());
  EXPECT_EQ(state.backwards_done(), 1);
}

TEST(StepStateTest, AFailureReleasesUnitsThatWereKeptGathered) {
  StepState state;
  run_forward(state);
  EXPECT_TRUE(state.forward_flags(true).still_gathered);
  state.begin_forward();
  state.fail();
  EXPECT_FALSE(state.forward_flags(true).still_gathered);
}

TEST(StepStateTest, UnitsAreKeptGatheredFromATrainingForwardToItsBackward) {
  StepState state;
  run_forward(state, /*train=*/false);
  EXPECT_FALSE(state.forward_flags(true).still_gathered);
  run_forward(state);
  EXPECT_TRUE(state.forward_flags(true).still_gathered);
  run_forward(state, /*train=*/false);
  EXPECT_TRUE(state.forward_flags(false).still_gathered);
  state.set_backward(/*trains=*/true);
  EXPECT_TRUE(state.backward_flags().still_gathered);
  state.begin_backward();
  state.end_backward();
  EXPECT_FALSE(state.forward_flags(true).still_gathered);
  run_forward(state);
  state.note_released();
  EXPECT_FALSE(state.forward_flags(true).still_gathered);
}

TEST(StepStateTest, ABackwardKnowsWhetherItIsTheFirstOrLastOfItsStep) {
  StepState state;
  state.set_micro_batches(3);
  for (int64_t done = 0; done < 3; ++done) {
    EXPECT_EQ(state.is_between_steps(), done == 0);
    EXPECT_FALSE(state.has_all_backwards());
    state.set_backward(/*trains=*/true);
    EXPECT_TRUE(state.trains());
    EXPECT_EQ(state.backward_flags().first, done == 0);
    EXPECT_EQ(state.backward_flags().last, done == 2);
    EXPECT_EQ(run_backward(state), done == 2);
    EXPECT_EQ(state.backwards_done(), done + 1);
  }
  EXPECT_TRUE(state.has_all_backwards());
  EXPECT_TRUE(state.is_between_steps());
  StepState single;
  single.set_backward(/*trains=*/true);
  EXPECT_TRUE(single.backward_flags().first && single.backward_flags().last);
}

TEST(StepStateTest, ABackwardWithoutGradientsOfParametersIsNotCounted) {
  StepState state;
  state.set_backward(/*trains=*/false);
  EXPECT_FALSE(state.trains());
  EXPECT_FALSE(state.backward_flags().first);
  EXPECT_FALSE(state.backward_flags().last);
  EXPECT_FALSE(run_backward(state, /*trains=*/false));
  EXPECT_EQ(state.backwards_done(), 0);
  EXPECT_TRUE(run_backward(state));
}

TEST(StepStateTest, TheEndOfAStepResetsItsCountersAndChangesTheWeights) {
  StepState state;
  run_forward(state);
  EXPECT_TRUE(run_backward(state));
  EXPECT_EQ(state.next_pass(), 1);
  EXPECT_EQ(state.next_pass(), 2);
  run_forward(state);
  state.set_divided();
  EXPECT_TRUE(state.is_divided());
  state.end_step();
  EXPECT_EQ(counters(state), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_FALSE(state.is_divided());
  EXPECT_EQ(state.next_pass(), 1);
  const auto flags = state.forward_flags(true);
  EXPECT_TRUE(flags.changed && !flags.still_gathered);
  run_forward(state, /*train=*/false);
  EXPECT_FALSE(state.forward_flags(true).changed);
}

TEST(StepStateTest, WeightsCountAsChangedUntilAForwardHasGatheredThem) {
  StepState state;
  state.end_step();
  state.begin_forward();
  state.fail();
  state.recover();
  EXPECT_TRUE(state.forward_flags(true).changed);  // the failed forward gathered nothing for sure
}

TEST(StepStateTest, ARecoveryNumbersPassesFromOneAgain) {
  StepState state;
  state.next_pass();
  state.begin_forward();
  state.next_pass();
  state.fail();
  state.recover();
  EXPECT_EQ(state.next_pass(), 1);
}

TEST(StepStateTest, APublicationThatWasNoStepIsUndone) {
  StepState state;
  state.end_step();
  state.undo_step();
  EXPECT_EQ(counters(state), (std::vector<int64_t>{0, 0, 1}));
}

TEST(StepStateTest, AnEditIsANewVersionThatNeedsNoRefresh) {
  StepState state;
  run_forward(state);
  state.note_edit();
  EXPECT_EQ(counters(state), (std::vector<int64_t>{0, 0, 1}));
  const auto flags = state.forward_flags(true);
  EXPECT_FALSE(flags.changed || flags.still_gathered);
}

TEST(StepStateTest, AStepThatGoesOnLeavesTheNextOneAsItWas) {
  StepState state;
  for (int step = 0; step < 2; ++step) {
    run_forward(state);
    run_backward(state);
    EXPECT_TRUE(state.has_all_backwards());
    state.go_on();
    EXPECT_FALSE(state.has_all_backwards());
    EXPECT_EQ(state.planned_micro_batches(), 1);
    run_forward(state);
    run_backward(state);
    EXPECT_FALSE(state.backward_flags().first);
    EXPECT_TRUE(state.backward_flags().last && state.has_all_backwards());
    state.end_step();
    EXPECT_EQ(state.micro_batches(), 1);
  }
}

TEST(StepStateTest, AStepWhoseBackwardsAreDroppedBeginsAgain) {
  StepState state;
  run_forward(state);
  run_backward(state);
  state.go_on();
  state.drop_backwards();
  EXPECT_EQ(counters(state), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(state.micro_batches(), 1);
  run_forward(state);
  run_backward(state);
  EXPECT_TRUE(state.backward_flags().first && state.backward_flags().last);
}

TEST(StepStateTest, ACapturedStepIsNotCounted) {
  StepState state;
  run_forward(state);
  run_backward(state);
  state.end_step();
  run_forward(state);
  const auto before = counters(state);
  state.begin_capture();
  const auto flags = state.forward_flags(true);
  EXPECT_TRUE(flags.changed && !flags.still_gathered);
  EXPECT_EQ(counters(state), before);
  run_forward(state);
  run_backward(state);
  state.end_step();
  state.end_capture();
  EXPECT_EQ(state.step(), 1);
  EXPECT_EQ(state.weight_version(), 1);
  EXPECT_EQ(state.backwards_done(), 0);
}

TEST(StepStateTest, EachReplayIsAStep) {
  StepState state;
  run_forward(state);
  for (int64_t replay = 1; replay <= 3; ++replay) {
    state.note_replay();
    EXPECT_EQ(counters(state), (std::vector<int64_t>{replay, 0, replay}));
    const auto flags = state.forward_flags(true);
    EXPECT_TRUE(flags.changed && !flags.still_gathered);
    run_forward(state);
  }
}

}  // namespace
}  // namespace sherd::testing
