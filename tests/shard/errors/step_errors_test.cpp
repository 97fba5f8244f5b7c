// SPDX-License-Identifier: Apache-2.0
// A training loop that does things in a wrong order: an error that says what to do instead, and
// nothing has changed.
#include "shard/failure_fixture.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

TEST(ErrorsTest, AnUpdateBeforeTheLastBackwardChangesNothing) {
  for (const auto& way : all_ways()) {
    for (const auto optimizer : {Optimizer::sgd, Optimizer::adamw}) {
      SCOPED_TRACE(way.name);
      FailureFixture fixture({.way = way, .micro_batches = 3, .optimizer = optimizer});
      fixture.train();
      for (int64_t done = 0; done < 3; ++done) {
        const auto before = main_weights(*fixture.model);
        const auto count = c10::str("after ", done, " of the 3 backwards");
        expect_error({"[shard]", "optimizer.step()", count, "'FaultyModel'", "micro_batches"}, [&] {
          step(fixture.model, *fixture.optimizer);
        });
        fixture.optimizer->step();  // torch's own: it finds no gradients
        expect_same_bits(main_weights(*fixture.model), before);
        if (done > 0) {
          expect_error(
              {"[shard]", "publish", count, "'FaultyModel'"}, [&] { publish(fixture.model); });
        }
        fixture.pass(done);
      }
      fixture.update();
      fixture.expect_alike();
      fixture.train();
    }
  }
}

TEST(ErrorsTest, ASecondUpdateOfAStepChangesNothing) {
  FailureFixture fixture;
  fixture.train();
  const auto before = main_weights(*fixture.model);
  expect_error({"optimizer.step()", "after 0 of the 1 backwards", "'FaultyModel'"}, [&] {
    step(fixture.model, *fixture.optimizer);
  });
  expect_same_bits(main_weights(*fixture.model), before);
  fixture.train();
}

TEST(ErrorsTest, AnOptimizerOverTheModulesOwnParametersIsRefused) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture fixture({.way = way});
    const auto wrong = make_optimizer(Optimizer::adamw, fixture.model->parameters());
    const auto before = main_weights(*fixture.model);
    fixture.pass(0);
    expect_error(
        {"[shard]", "'in.weight'", "model->parameters()", "sherd::parameters(model)"},
        [&] { step(fixture.model, *wrong); });
    expect_error(
        {"[shard]", "none of the main weights of 'FaultyModel'", "sherd::parameters(model)"},
        [&] { step(fixture.model, *fixture.twin_optimizer); });
    expect_same_bits(main_weights(*fixture.model), before);
    fixture.update();
    fixture.expect_alike();
    fixture.train();
  }
}

/// What is said on the way.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;
};

TEST(ErrorsTest, APublishThatChangesNothingInTheFirstStepWarns) {
  FailureFixture fixture;
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  fixture.pass(0);
  make_optimizer(Optimizer::adamw, fixture.model->parameters())->step();  // finds no gradients
  publish(fixture.model);
  EXPECT_NE(warnings.text.find("sherd::parameters(model)"), std::string::npos) << warnings.text;
  warnings.text.clear();
  fixture.forward().backward();
  fixture.optimizer->step();
  publish(fixture.model);
  fixture.forward().backward();
  publish(fixture.model);  // a step that is thrown away, with a purpose
  EXPECT_EQ(warnings.text, "");
}

TEST(ErrorsTest, ABackwardAfterTheLastNamesBothNumbers) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture fixture({.way = way, .micro_batches = 2});
    fixture.train();
    fixture.pass(0);
    fixture.pass(1);
    auto loss = fixture.forward();
    expect_error(
        {"[shard]", "backward 3 of 'FaultyModel'", "a step has 2", "publish",
         "sherd::micro_batches"},
        [&] { loss.backward(); });
    expect_error({"idle_pass", "backward 3 of 'FaultyModel'", "a step has 2"}, [&] {
      idle_pass(fixture.model);
    });
    fixture.expect_resting();
    fixture.update();
    fixture.expect_alike();
    fixture.train();
  }
}

TEST(ErrorsTest, MicroBatchesAreAtLeastOne) {
  FailureFixture fixture;
  expect_error({"[shard]", "micro_batches(FaultyModel, 0)", "at least 1"}, [&] {
    micro_batches(fixture.model, 0);
  });
  expect_error({"micro_batches(FaultyModel, -3)"}, [&] { micro_batches(fixture.model, -3); });
  fixture.train();
}

TEST(ErrorsTest, MicroBatchesDoNotChangeInTheMiddleOfAStep) {
  FailureFixture fixture({.micro_batches = 2});
  fixture.train();
  for (int64_t done = 1; done <= 2; ++done) {
    fixture.pass(done - 1);
    expect_error(
        {"[shard]", "micro_batches(FaultyModel, 5)", c10::str(done, " of 2 backwards"),
         "between steps"},
        [&] { micro_batches(fixture.model, 5); });
  }
  fixture.update();
  fixture.expect_alike();
  // Nor inside a pass.
  fixture.model->blocks[1]->before = [&](const at::Tensor& x) {
    micro_batches(fixture.model, 5);
    return x;
  };
  expect_error({"[shard]", "micro_batches", "'block1'", "in the forward", "between passes"}, [&] {
    fixture.forward();
  });
  fixture.model->blocks[1]->before = nullptr;
  fixture.train();
}

/// Torch's SGD writes the weights past their version counters, its AdamW does not.
TEST(ErrorsTest, MainWeightsUpdatedButModelWeightsNotRefreshedIsAnErrorAtTheNextForward) {
  for (const auto& way : all_ways()) {
    for (const auto optimizer : {Optimizer::sgd, Optimizer::adamw}) {
      SCOPED_TRACE(way.name + (optimizer == Optimizer::sgd ? ", SGD" : ", AdamW"));
      FailureFixture fixture({.way = way, .optimizer = optimizer});
      fixture.train();
      fixture.pass(0);
      fixture.optimizer->step();
      const auto said = {
          std::string("[shard]"), std::string("'FaultyModel' have changed"),
          std::string("sherd::publish(model)")};
      expect_error(said, [&] { fixture.forward(); });
      {
        const torch::NoGradGuard no_grad;
        expect_error(said, [&] { fixture.forward(); });
      }
      publish(fixture.model);
      step(fixture.twin, *fixture.twin_optimizer);
      expect_same_bits(main_weights(*fixture.model), main_weights(*fixture.twin));
      EXPECT_EQ(
          fixture.forward(fixture.model).item<float>(),
          fixture.forward(fixture.twin).item<float>());
    }
  }
}

TEST(ErrorsTest, ABackwardOfAForwardBeforeTheUpdateIsRefused) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture fixture({.way = way});
    fixture.train();
    auto early = fixture.forward();
    fixture.pass(0);
    fixture.update();
    expect_error({"[shard]", "a backward of 'FaultyModel'", "before the weights changed"}, [&] {
      early.backward();
    });
    early.reset();
    fixture.train();
  }
}

TEST(ErrorsTest, AFrozenParameterThatIsTrainedLaterIsNamed) {
  FailureFixture fixture;
  FaultyModel model;
  to_device(*model);
  for (auto& parameter : model->in->parameters()) parameter.set_requires_grad(false);
  fully_shard(model, {.mesh = mesh_for({})});
  for (auto& parameter : model->in->parameters()) parameter.set_requires_grad(true);
  expect_error(
      {"[shard] parameter 'in.", "unit 'FaultyModel' was frozen when it was sharded",
       "before fully_shard"},
      [&] { fixture.forward(model).backward(); });
}

TEST(ErrorsTest, ABlockThatOutlivesItsModelIsARootOfItsOwn) {
  FailureFixture fixture;
  FaultyModel model;
  to_device(*model);
  for (auto& block : model->blocks) fully_shard(block, {.mesh = mesh_for({})});
  fully_shard(model, {.mesh = mesh_for({})});
  auto block = model->blocks[0];
  const auto x = torch::ones({2, 10}).to(test_world().device());
  fixture.forward(model).backward();
  model = nullptr;
  block(x).sum().backward();
  EXPECT_EQ(program(block).units().size(), 1u);
}

TEST(ErrorsTest, ALossPerTokenNeedsTheTokens) {
  FailureFixture fixture({.loss = Loss::per_token});
  fixture.train();
  fixture.pass(0);
  const auto before = main_weights(*fixture.model);
  if (test_world().rank() == 0) {  // the others wait until it has corrected itself
    expect_error({"[shard]", "'FaultyModel'", "per token", ".tokens"}, [&] {
      step(fixture.model, *fixture.optimizer);
    });
  }
  expect_error({"[shard]", "'FaultyModel'", "0 tokens"}, [&] {
    step(*fixture.model, *fixture.optimizer, {.tokens = 0});
  });
  expect_same_bits(main_weights(*fixture.model), before);
  fixture.update();
  fixture.expect_alike();
  fixture.train();
  fixture.pass(0);
  if (test_world().rank() == 0) {
    expect_error(
        {"gradient_norm of 'FaultyModel'", ".tokens"}, [&] { gradient_norm(fixture.model); });
  }
  EXPECT_GT(gradient_norm(fixture.model, {.tokens = 4}), 0);
  expect_error({"gradient_norm of 'FaultyModel'", "no tokens on any rank"}, [&] {
    gradient_norm(fixture.model, {.tokens = 0});
  });
  for (const bool norm : {false, true}) {
    expect_error({"[shard]", "'FaultyModel'", "-1 tokens"}, [&] {
      norm ? (void)gradient_norm(fixture.model, {.tokens = -1})
           : step(*fixture.model, *fixture.optimizer, {.tokens = -1});
    });
  }
  fixture.optimizer->step();  // finds no gradients, as they are not divided yet
  expect_error(
      {"[shard]", "'FaultyModel'", "per token", ".tokens"}, [&] { publish(fixture.model); });
  fixture.update();
  fixture.expect_alike();
}

TEST(ErrorsTest, TokensNeedALossPerToken) {
  FailureFixture fixture;
  fixture.train();
  fixture.pass(0);
  const auto before = main_weights(*fixture.model);
  if (test_world().rank() == 0) {
    expect_error({"[shard]", "tokens", "'FaultyModel'", "sherd::Loss::per_token"}, [&] {
      step(*fixture.model, *fixture.optimizer, {.tokens = 4});
    });
  }
  expect_same_bits(main_weights(*fixture.model), before);
  fixture.update();
  fixture.expect_alike();
}

TEST(ErrorsTest, WhatIsAskedOfTheModelIsNotAnsweredForAnInnerUnitOrAPlainModule) {
  FailureFixture fixture;
  fixture.train();
  const std::vector<std::pair<const char*, std::function<void(torch::nn::Module&)>>> all{
      {"micro_batches", [](auto& model) { micro_batches(model, 2); }},
      {"idle_pass", [](auto& model) { idle_pass(model); }},
      {"finish", [](auto& model) { finish(model); }},
      {"parameters", [](auto& model) { parameters(model); }},
      {"publish", [](auto& model) { publish(model); }},
      {"step", [&](auto& model) { step(model, *fixture.optimizer); }},
      {"gradient_norm", [](auto& model) { gradient_norm(model); }},
      {"program", [](auto& model) { program(model); }},
      {"allocated_bytes", [](auto& model) { allocated_bytes(model); }},
      {"full_parameters", [](auto& model) { full_parameters(model); }}};
  for (const auto& [name, ask] : all) {
    SCOPED_TRACE(name);
    expect_error({"[shard]", name, "FaultyModelImpl", "not sharded", "sherd::fully_shard"}, [&] {
      ask(*fixture.reference);
    });
    expect_error({"[shard]", name, "'block1'", "not the root", "pass 'FaultyModel'"}, [&] {
      ask(*fixture.model->blocks[1]);
    });
  }
  expect_error({"[shard]", "edit_parameters", "FaultyModelImpl", "not a unit"}, [&] {
    edit_parameters(fixture.reference, [] {});
  });
  fixture.train();
}

TEST(ErrorsTest, AGradientNormBeforeTheLastBackwardIsRefused) {
  FailureFixture fixture({.micro_batches = 2});
  fixture.pass(0);
  expect_error({"[shard]", "gradient_norm", "after 1 of the 2 backwards", "'FaultyModel'"}, [&] {
    gradient_norm(fixture.model);
  });
  fixture.pass(1);
  EXPECT_EQ(gradient_norm(fixture.model), gradient_norm(fixture.twin));
  fixture.update();
  fixture.expect_alike();
}

}  // namespace
}  // namespace sherd::testing
