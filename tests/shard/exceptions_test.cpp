// SPDX-License-Identifier: Apache-2.0
// An exception on all ranks: every unit rests, and training goes on as if the pass had not been.
#include "shard/failure_fixture.h"

namespace sherd::testing {
namespace {

using FaultyRecompute = FaultyModelImpl::Recompute;

at::Tensor fail_forward(const at::Tensor&) {
  throw std::logic_error("a mistake in the forward");
}

/// Tells a block to misbehave for as long as it lives.
class Mood {
 public:
  Mood(FailureFixture& rig, size_t block, bool at_input, Change change)
      : change_(at_input ? rig.model->blocks[block]->before : rig.model->blocks[block]->after) {
    change_ = std::move(change);
  }
  ~Mood() { change_ = nullptr; }
  Mood(const Mood&) = delete;
  Mood& operator=(const Mood&) = delete;

 private:
  Change& change_;
};

/// The same for what it does in the backward.
class BackwardMood {
 public:
  BackwardMood(FailureFixture& rig, size_t block, bool at_input, std::function<void()> action)
      : mood_(rig, block, at_input, in_backward) {
    InBackward::action = std::move(action);
  }
  ~BackwardMood() { InBackward::action = nullptr; }

 private:
  Mood mood_;
};

/// Every block, before and after it has computed.
template <class Run>
void for_every_place(Run run) {
  for (size_t block = 0; block < 3; ++block) {
    for (const bool at_input : {true, false}) {
      SCOPED_TRACE(c10::str("block ", block, at_input ? ", its input" : ", its output"));
      run(block, at_input);
    }
  }
}

class ExceptionsTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(ExceptionsTest, InAForwardLeavesTheStepAsItWas) {
  for (const auto recompute : {FaultyRecompute::nowhere, FaultyRecompute::around_blocks}) {
    FailureFixture rig({.way = GetParam(), .micro_batches = 2, .recompute = recompute});
    const auto fail = [&] {
      for_every_place([&](size_t block, bool at_input) {
        const Mood mood(rig, block, at_input, fail_forward);
        expect_error({"a mistake in the forward"}, [&] { rig.forward(); });
        rig.expect_resting();
        const torch::NoGradGuard no_grad;
        expect_error({"a mistake in the forward"}, [&] { rig.forward(); });
      });
    };
    for (int64_t step = 0; step < 2; ++step) {
      fail();  // of the very first pass, and after an update
      rig.pass(0);
      fail();  // with gradients of the step waiting
      rig.pass(1);
      fail();  // before the update
      rig.update();
      rig.expect_alike();
    }
    rig.train(2);
  }
}

TEST_P(ExceptionsTest, InAForwardLeavesTheForwardBeforeItIntact) {
  FailureFixture rig({.way = GetParam()});
  for (int64_t step = 0; step < 2; ++step) {
    auto loss = rig.forward();
    {
      const Mood mood(rig, 1, /*at_input=*/true, fail_forward);
      expect_error({"a mistake in the forward"}, [&] { rig.forward(); });
    }
    loss.backward();
    rig.pass_others(0);
    rig.update();
    rig.expect_alike();
  }
  rig.train();
}

TEST_P(ExceptionsTest, InABackwardRestartsTheStep) {
  for (const auto recompute :
       {FaultyRecompute::nowhere, FaultyRecompute::inside_blocks, FaultyRecompute::around_blocks}) {
    FailureFixture rig({.way = GetParam(), .micro_batches = 2, .recompute = recompute});
    for (int64_t step = 0; step < 2; ++step) {
      for (int64_t done = 0; done < 2; ++done) {
        for_every_place([&](size_t block, bool at_input) {
          for (int64_t i = 0; i < done; ++i) rig.pass_model(i);
          const BackwardMood mood(
              rig, block, at_input, [] { throw std::runtime_error("a mistake in the backward"); });
          auto loss = rig.forward();
          expect_error({"a mistake in the backward"}, [&] { loss.backward(); });
          rig.expect_resting();
          expect_error(
              {"after 0 of the 2 backwards"}, [&] { sherd::step(rig.model, *rig.optimizer); });
        });
      }
      rig.train();
    }
  }
}

/// The forward goes well, and fails when it is done again in the backward.
TEST_P(ExceptionsTest, InARecomputeRestartsTheStep) {
  FailureFixture rig(
      {.way = GetParam(), .micro_batches = 2, .recompute = FaultyRecompute::around_blocks});
  for (int64_t step = 0; step < 2; ++step) {
    for_every_place([&](size_t block, bool at_input) {
      rig.pass_model(0);
      at::Tensor loss = rig.forward();
      const Mood mood(rig, block, at_input, fail_forward);
      expect_error({"a mistake in the forward"}, [&] { loss.backward(); });
      rig.expect_resting();
    });
    rig.train();
  }
}

TEST_P(ExceptionsTest, AUnitCalledInTheBackwardIsToBeWrappedInRecompute) {
  FailureFixture rig({.way = GetParam()});
  rig.train();
  for_every_place([&](size_t block, bool at_input) {
    const BackwardMood mood(rig, block, at_input, [&] {
      rig.model->blocks[1](torch::ones({4, 10}).to(test_world().device()));
    });
    auto loss = rig.forward();
    expect_error(
        {"[shard]", "'block1'", "in the backward", "sherd::recompute"}, [&] { loss.backward(); });
    rig.expect_resting();
  });
  rig.train(2);
}

TEST_P(ExceptionsTest, SwallowedInsideTheModelIsAnErrorThatNamesAUnit) {
  FailureFixture rig({.way = GetParam()});
  rig.train();
  rig.model->swallow = true;
  for_every_place([&](size_t block, bool at_input) {
    const Mood mood(rig, block, at_input, fail_forward);
    expect_error(
        {"[shard]", block == 2 ? "'FaultyModel'" : c10::str("'block", block + 1, "'")},
        [&] { rig.forward(); });
    rig.expect_resting();
  });
  rig.train();
}

INSTANTIATE_TEST_SUITE_P(
    Ways, ExceptionsTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
      return way.param.name;
    });

/// The exception of the model itself arrives as it was thrown.
TEST(ErrorsTest, AnExceptionKeepsItsType) {
  FailureFixture rig;
  {
    const Mood mood(rig, 1, true, fail_forward);
    EXPECT_THROW(rig.forward(), std::logic_error);
  }
  {
    const BackwardMood mood(rig, 1, true, [] { throw std::bad_alloc(); });
    auto loss = rig.forward();
    EXPECT_THROW(loss.backward(), std::bad_alloc);
  }
  rig.train();
}

}  // namespace
}  // namespace sherd::testing
