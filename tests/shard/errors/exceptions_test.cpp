// SPDX-License-Identifier: Apache-2.0
// An exception on all ranks: every unit rests, and training goes on as if the pass had not been.
#include "shard/failure_fixture.h"
#include "shard/runtime/runtime.h"

namespace sherd::testing {
namespace {

using FaultyRecompute = FaultyModelImpl::Recompute;

at::Tensor fail_forward(const at::Tensor&) {
  throw std::logic_error("a mistake in the forward");
}

/// Tells a block to misbehave for as long as it lives.
class Mood {
 public:
  Mood(FailureFixture& fixture, size_t block, bool at_input, Change change)
      : change_(
            at_input ? fixture.model->blocks[block]->before : fixture.model->blocks[block]->after) {
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
  BackwardMood(FailureFixture& fixture, size_t block, bool at_input, std::function<void()> action)
      : mood_(fixture, block, at_input, in_backward) {
    InBackward::action = std::move(action);
  }
  ~BackwardMood() { InBackward::action = nullptr; }

 private:
  Mood mood_;
};

/// Sends a record in which each rank says something else. It is found where a pass looks next:
/// after the last gather that is at its end, as on CUDA, where the host does not wait for records.
void send_differing_record(const FailureFixture& fixture) {
  auto& parts = Runtime::of_model(*fixture.model, "the test")->parts();
  parts.agreement.records().start({RankRecords::Kind::pass, test_world().rank()}, [] {
    return c10::str("differs as number ", test_world().rank());
  });
}

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
    FailureFixture fixture({.way = GetParam(), .micro_batches = 2, .recompute = recompute});
    const auto fail = [&] {
      for_every_place([&](size_t block, bool at_input) {
        const Mood mood(fixture, block, at_input, fail_forward);
        expect_error({"a mistake in the forward"}, [&] { fixture.forward(); });
        fixture.expect_resting();
        const torch::NoGradGuard no_grad;
        expect_error({"a mistake in the forward"}, [&] { fixture.forward(); });
      });
    };
    for (int64_t step = 0; step < 2; ++step) {
      fail();  // of the very first pass, and after an update
      fixture.pass(0);
      fail();  // with gradients of the step waiting
      fixture.pass(1);
      fail();  // before the update
      fixture.update();
      fixture.expect_alike();
    }
    fixture.train(2);
  }
}

TEST_P(ExceptionsTest, InAForwardLeavesTheForwardBeforeItIntact) {
  FailureFixture fixture({.way = GetParam()});
  for (int64_t step = 0; step < 2; ++step) {
    auto loss = fixture.forward();
    {
      const Mood mood(fixture, 1, /*at_input=*/true, fail_forward);
      expect_error({"a mistake in the forward"}, [&] { fixture.forward(); });
    }
    loss.backward();
    fixture.pass_others(0);
    fixture.update();
    fixture.expect_alike();
  }
  fixture.train();
}

TEST_P(ExceptionsTest, InABackwardRestartsTheStep) {
  for (const auto recompute :
       {FaultyRecompute::nowhere, FaultyRecompute::inside_blocks, FaultyRecompute::around_blocks}) {
    FailureFixture fixture({.way = GetParam(), .micro_batches = 2, .recompute = recompute});
    for (int64_t step = 0; step < 2; ++step) {
      for (int64_t done = 0; done < 2; ++done) {
        for_every_place([&](size_t block, bool at_input) {
          for (int64_t i = 0; i < done; ++i) fixture.pass_model(i);
          const BackwardMood mood(fixture, block, at_input, [] {
            throw std::runtime_error("a mistake in the backward");
          });
          auto loss = fixture.forward();
          expect_error({"a mistake in the backward"}, [&] { loss.backward(); });
          fixture.expect_resting();
          expect_error({"after 0 of the 2 backwards"}, [&] {
            sherd::step(fixture.model, *fixture.optimizer);
          });
        });
      }
      fixture.train();
    }
  }
}

/// The forward goes well, and fails when it is done again in the backward.
TEST_P(ExceptionsTest, InARecomputeRestartsTheStep) {
  FailureFixture fixture(
      {.way = GetParam(), .micro_batches = 2, .recompute = FaultyRecompute::around_blocks});
  for (int64_t step = 0; step < 2; ++step) {
    for_every_place([&](size_t block, bool at_input) {
      fixture.pass_model(0);
      at::Tensor loss = fixture.forward();
      const Mood mood(fixture, block, at_input, fail_forward);
      expect_error({"a mistake in the forward"}, [&] { loss.backward(); });
      fixture.expect_resting();
    });
    fixture.train();
  }
}

/// Gradients that were reduced before the ranks found that they differ are of no step.
TEST_P(ExceptionsTest, ADifferenceFoundAtTheEndOfABackwardRestartsTheStep) {
  if (test_world().size() == 1) return;  // it agrees with itself
  FailureFixture fixture({.way = GetParam(), .micro_batches = 2});
  for (int64_t step = 0; step < 2; ++step) {
    for (int64_t done = 0; done < 2; ++done) {
      for (int64_t i = 0; i < done; ++i) fixture.pass_model(i);
      const BackwardMood mood(
          fixture, 0, /*at_input=*/true, [&] { send_differing_record(fixture); });
      auto loss = fixture.forward(fixture.model, done);
      expect_error({"[shard.agree]", "differs as number 1"}, [&] { loss.backward(); });
      fixture.expect_resting();
      expect_error(
          {"after 0 of the 2 backwards"}, [&] { sherd::step(fixture.model, *fixture.optimizer); });
    }
    fixture.train();
  }
}

TEST_P(ExceptionsTest, ADifferenceFoundAtTheEndOfAForwardFailsIt) {
  if (test_world().size() == 1) return;
  FailureFixture fixture({.way = GetParam(), .micro_batches = 2});
  for (int64_t step = 0; step < 2; ++step) {
    fixture.pass(0);
    {
      const Mood mood(fixture, 2, /*at_input=*/false, [&](const at::Tensor& output) {
        send_differing_record(fixture);
        return output;
      });
      expect_error({"[shard.agree]", "differs as number 1"}, [&] { fixture.forward(); });
    }
    fixture.expect_resting();
    EXPECT_TRUE(Runtime::of_model(*fixture.model, "the test")->state().has_failed());
    fixture.pass(1);
    fixture.update();
    fixture.expect_alike();
  }
}

/// Parameters that a rank found frozen in a backward that failed make no difference in later
/// passes.
TEST_P(ExceptionsTest, RanksThatDifferInWhatIsFrozenRestartTheStep) {
  if (test_world().size() == 1) return;  // it agrees with itself
  FailureFixture fixture({.way = GetParam(), .micro_batches = 2});
  auto& weight = fixture.model->blocks[1]->up->weight;
  for (int64_t step = 0; step < 2; ++step) {
    fixture.pass_model(0);
    auto loss = fixture.forward(fixture.model, 1);
    if (test_world().rank() == 1) weight.set_requires_grad(false);
    expect_error({"[shard.agree]", "frozen since sharding"}, [&] { loss.backward(); });
    weight.set_requires_grad(true);
    fixture.expect_resting();
    expect_error(
        {"after 0 of the 2 backwards"}, [&] { sherd::step(fixture.model, *fixture.optimizer); });
    fixture.train();
  }
}

/// The end of the first forward is where ranks compare how they called their units.
TEST_P(ExceptionsTest, RanksThatDifferAtTheEndOfAForwardMayRepeatIt) {
  if (test_world().size() == 1) return;
  FailureFixture fixture({.way = GetParam()});
  if (test_world().rank() == 1) fixture.model->where = FaultyRecompute::around_blocks;
  expect_error({"[shard.agree]", "under a recompute"}, [&] { fixture.forward(); });
  fixture.expect_resting();
  fixture.model->where = FaultyRecompute::nowhere;
  fixture.train(2);
}

TEST_P(ExceptionsTest, AreFollowedByAnotherNumberOfMicroBatches) {
  FailureFixture fixture({.way = GetParam()});
  fixture.train();
  for (const int64_t count : {2, 1}) {
    const Mood mood(fixture, 1, /*at_input=*/true, fail_forward);
    expect_error({"a mistake in the forward"}, [&] { fixture.forward(); });
    micro_batches(fixture.model, count);
  }
  fixture.train();
}

TEST_P(ExceptionsTest, AUnitCalledInTheBackwardIsToBeWrappedInRecompute) {
  FailureFixture fixture({.way = GetParam()});
  fixture.train();
  for_every_place([&](size_t block, bool at_input) {
    const BackwardMood mood(fixture, block, at_input, [&] {
      fixture.model->blocks[1](torch::ones({4, 10}).to(test_world().device()));
    });
    auto loss = fixture.forward();
    expect_error(
        {"[shard]", "'block1'", "in the backward", "sherd::recompute"}, [&] { loss.backward(); });
    fixture.expect_resting();
  });
  fixture.train(2);
}

TEST_P(ExceptionsTest, SwallowedInsideTheModelIsAnErrorThatNamesAUnit) {
  FailureFixture fixture({.way = GetParam()});
  fixture.train();
  fixture.model->swallow = true;
  for_every_place([&](size_t block, bool at_input) {
    const Mood mood(fixture, block, at_input, fail_forward);
    expect_error(
        {"[shard]", block == 2 ? "'FaultyModel'" : c10::str("'block", block + 1, "'")},
        [&] { fixture.forward(); });
    fixture.expect_resting();
  });
  fixture.train();
}

INSTANTIATE_TEST_SUITE_P(
    Ways, ExceptionsTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
      return way.param.name;
    });

/// The exception of the model itself arrives as it was thrown.
TEST(ErrorsTest, AnExceptionKeepsItsType) {
  FailureFixture fixture;
  {
    const Mood mood(fixture, 1, true, fail_forward);
    EXPECT_THROW(fixture.forward(), std::logic_error);
  }
  {
    const BackwardMood mood(fixture, 1, true, [] { throw std::bad_alloc(); });
    auto loss = fixture.forward();
    EXPECT_THROW(loss.backward(), std::bad_alloc);
  }
  fixture.train();
}

}  // namespace
}  // namespace sherd::testing
