// SPDX-License-Identifier: Apache-2.0
// A training loop that does things in a wrong order: an error that says what to do instead, and
// nothing has changed.
#include <set>

#include "shard/failure_fixture.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/initialise.h"

namespace sherd::testing {
namespace {

TEST(ErrorsTest, AnUpdateBeforeTheLastBackwardChangesNothing) {
  for (const auto& way : all_ways()) {
    for (const auto optimizer : {Optimizer::sgd, Optimizer::adamw}) {
      SCOPED_TRACE(way.name);
      FailureFixture rig({.way = way, .micro_batches = 3, .optimizer = optimizer});
      rig.train();
      for (int64_t done = 0; done < 3; ++done) {
        const auto before = main_weights(*rig.model);
        const auto count = c10::str("after ", done, " of the 3 backwards");
        expect_error({"[shard]", "optimizer.step()", count, "'FaultyModel'", "micro_batches"}, [&] {
          step(rig.model, *rig.optimizer);
        });
        rig.optimizer->step();  // torch's own: it finds no gradients
        expect_same_bits(main_weights(*rig.model), before);
        if (done > 0) {
          expect_error({"[shard]", "publish", count, "'FaultyModel'"}, [&] { publish(rig.model); });
        }
        rig.pass(done);
      }
      rig.update();
      rig.expect_alike();
      rig.train();
    }
  }
}

TEST(ErrorsTest, ASecondUpdateOfAStepChangesNothing) {
  FailureFixture rig;
  rig.train();
  const auto before = main_weights(*rig.model);
  expect_error({"optimizer.step()", "after 0 of the 1 backwards", "'FaultyModel'"}, [&] {
    step(rig.model, *rig.optimizer);
  });
  expect_same_bits(main_weights(*rig.model), before);
  rig.train();
}

TEST(ErrorsTest, AnOptimizerOverTheModulesOwnParametersIsRefused) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture rig({.way = way});
    const auto wrong = make_optimizer(Optimizer::adamw, rig.model->parameters());
    const auto before = main_weights(*rig.model);
    rig.pass(0);
    expect_error(
        {"[shard]", "'in.weight'", "model->parameters()", "sherd::parameters(model)"},
        [&] { step(rig.model, *wrong); });
    expect_error(
        {"[shard]", "none of the main weights of 'FaultyModel'", "sherd::parameters(model)"},
        [&] { step(rig.model, *rig.twin_optimizer); });
    expect_same_bits(main_weights(*rig.model), before);
    rig.update();
    rig.expect_alike();
    rig.train();
  }
}

/// What is said on the way.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg(); }
  std::string text;
};

TEST(ErrorsTest, APublishThatChangesNothingInTheFirstStepWarns) {
  FailureFixture rig;
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  rig.pass(0);
  make_optimizer(Optimizer::adamw, rig.model->parameters())->step();  // finds no gradients
  publish(rig.model);
  EXPECT_NE(warnings.text.find("sherd::parameters(model)"), std::string::npos) << warnings.text;
  warnings.text.clear();
  rig.forward().backward();
  rig.optimizer->step();
  publish(rig.model);
  rig.forward().backward();
  publish(rig.model);  // a step that is thrown away, with a purpose
  EXPECT_EQ(warnings.text, "");
}

TEST(ErrorsTest, ABackwardAfterTheLastNamesBothNumbers) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture rig({.way = way, .micro_batches = 2});
    rig.train();
    rig.pass(0);
    rig.pass(1);
    auto loss = rig.forward();
    expect_error(
        {"[shard]", "backward 3 of 'FaultyModel'", "a step has 2", "publish",
         "sherd::micro_batches"},
        [&] { loss.backward(); });
    expect_error({"idle_pass", "backward 3 of 'FaultyModel'", "a step has 2"}, [&] {
      idle_pass(rig.model);
    });
    rig.expect_resting();
    rig.update();
    rig.expect_alike();
    rig.train();
  }
}

TEST(ErrorsTest, MicroBatchesAreAtLeastOne) {
  FailureFixture rig;
  expect_error({"[shard]", "micro_batches(FaultyModel, 0)", "at least 1"}, [&] {
    micro_batches(rig.model, 0);
  });
  expect_error({"micro_batches(FaultyModel, -3)"}, [&] { micro_batches(rig.model, -3); });
  rig.train();
}

TEST(ErrorsTest, MicroBatchesDoNotChangeInTheMiddleOfAStep) {
  FailureFixture rig({.micro_batches = 2});
  rig.train();
  for (int64_t done = 1; done <= 2; ++done) {
    rig.pass(done - 1);
    expect_error(
        {"[shard]", "micro_batches(FaultyModel, 5)", c10::str(done, " of 2 backwards"),
         "between steps"},
        [&] { micro_batches(rig.model, 5); });
  }
  rig.update();
  rig.expect_alike();
  // Nor inside a pass.
  rig.model->blocks[1]->before = [&](const at::Tensor& x) {
    micro_batches(rig.model, 5);
    return x;
  };
  expect_error({"[shard]", "micro_batches", "'block1'", "in the forward", "between passes"}, [&] {
    rig.forward();
  });
  rig.model->blocks[1]->before = nullptr;
  rig.train();
}

/// Torch's SGD writes the weights past their version counters, its AdamW does not.
TEST(ErrorsTest, MainWeightsUpdatedButModelWeightsNotRefreshedIsAnErrorAtTheNextForward) {
  for (const auto& way : all_ways()) {
    for (const auto optimizer : {Optimizer::sgd, Optimizer::adamw}) {
      SCOPED_TRACE(way.name + (optimizer == Optimizer::sgd ? ", SGD" : ", AdamW"));
      FailureFixture rig({.way = way, .optimizer = optimizer});
      rig.train();
      rig.pass(0);
      rig.optimizer->step();
      const auto said = {
          std::string("[shard]"), std::string("'FaultyModel' have changed"),
          std::string("sherd::publish(model)")};
      expect_error(said, [&] { rig.forward(); });
      {
        const torch::NoGradGuard no_grad;
        expect_error(said, [&] { rig.forward(); });
      }
      publish(rig.model);
      step(rig.twin, *rig.twin_optimizer);
      expect_same_bits(main_weights(*rig.model), main_weights(*rig.twin));
      EXPECT_EQ(rig.forward(rig.model).item<float>(), rig.forward(rig.twin).item<float>());
    }
  }
}

TEST(ErrorsTest, ABackwardOfAForwardBeforeTheUpdateIsRefused) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture rig({.way = way});
    rig.train();
    auto early = rig.forward();
    rig.pass(0);
    rig.update();
    expect_error({"[shard]", "a backward of 'FaultyModel'", "before the weights changed"}, [&] {
      early.backward();
    });
    early.reset();
    rig.train();
  }
}

TEST(ErrorsTest, AnEditReachesUnitsThatStayGathered) {
  FailureFixture rig;
  ShardOptions options{.mesh = mesh_for({}), .keep_gathered = true};
  torch::manual_seed(5);
  FaultyModel model;
  to_device(*model);
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  const auto before = rig.forward(model).item<float>();  // no backward: the units stay gathered
  edit_parameters(model->blocks[0], [&] {
    for (auto& parameter : model->blocks[0]->parameters()) parameter.zero_();
  });
  EXPECT_NE(rig.forward(model).item<float>(), before);
}

TEST(ErrorsTest, AnEditKeepsDigitsThatModelWeightsDoNotHave) {
  FaultyModel model;
  to_device(*model);
  ShardOptions options{.mesh = mesh_for({}), .precision = Precision::recipe("bf16_o2")};
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  constexpr double kFine = 1 + 0x1p-12;  // 1 in bf16
  std::set<std::string> names;
  edit_parameters(model->blocks[1], [&] {
    for (auto& item : model->blocks[1]->named_parameters()) {
      EXPECT_EQ(item.value().scalar_type(), at::kFloat);
      names.insert("block1." + item.key());
      item.value().fill_(kFine);
    }
  });
  for (const auto& parameter : model->blocks[1]->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(names.size(), model->blocks[1]->parameters().size());
  size_t found = 0;
  for (const auto& [name, weight] : full_parameters(model)) {
    const bool all = weight.eq(kFine).all().item<bool>();
    EXPECT_EQ(all, names.contains(name)) << name;
    found += all;
  }
  EXPECT_EQ(found, names.size());
}

TEST(ErrorsTest, AFrozenParameterThatIsTrainedLaterIsNamed) {
  FailureFixture rig;
  FaultyModel model;
  to_device(*model);
  for (auto& parameter : model->in->parameters()) parameter.set_requires_grad(false);
  fully_shard(model, {.mesh = mesh_for({})});
  for (auto& parameter : model->in->parameters()) parameter.set_requires_grad(true);
  expect_error(
      {"[shard] parameter 'in.", "unit 'FaultyModel' was frozen when it was sharded",
       "before fully_shard"},
      [&] { rig.forward(model).backward(); });
}

TEST(ErrorsTest, ABlockThatOutlivesItsModelIsARootOfItsOwn) {
  FailureFixture rig;
  FaultyModel model;
  to_device(*model);
  for (auto& block : model->blocks) fully_shard(block, {.mesh = mesh_for({})});
  fully_shard(model, {.mesh = mesh_for({})});
  auto block = model->blocks[0];
  const auto x = torch::ones({2, 10}).to(test_world().device());
  rig.forward(model).backward();
  model = nullptr;
  block(x).sum().backward();
  EXPECT_EQ(program(block).units().size(), 1u);
}

TEST(ErrorsTest, ALossPerTokenNeedsTheTokens) {
  FailureFixture rig({.loss = Loss::per_token});
  rig.train();
  rig.pass(0);
  const auto before = main_weights(*rig.model);
  expect_error({"[shard]", "'FaultyModel'", "per token", ".tokens"}, [&] {
    step(rig.model, *rig.optimizer);
  });
  expect_error({"[shard]", "'FaultyModel'", "0 tokens"}, [&] {
    step(*rig.model, *rig.optimizer, {.tokens = 0});
  });
  expect_same_bits(main_weights(*rig.model), before);
  rig.update();
  rig.expect_alike();
  rig.train();
  rig.pass(0);
  expect_error({"gradient_norm of 'FaultyModel'", ".tokens"}, [&] { gradient_norm(rig.model); });
  EXPECT_GT(gradient_norm(rig.model, {.tokens = 4}), 0);
  rig.optimizer->step();  // finds no gradients, as they are not divided yet
  expect_error({"[shard]", "'FaultyModel'", "per token", ".tokens"}, [&] { publish(rig.model); });
  rig.update();
  rig.expect_alike();
}

TEST(ErrorsTest, TokensNeedALossPerToken) {
  FailureFixture rig;
  rig.train();
  rig.pass(0);
  const auto before = main_weights(*rig.model);
  expect_error({"[shard]", "tokens", "'FaultyModel'", "sherd::Loss::per_token"}, [&] {
    step(*rig.model, *rig.optimizer, {.tokens = 4});
  });
  expect_same_bits(main_weights(*rig.model), before);
  rig.update();
  rig.expect_alike();
}

TEST(ErrorsTest, ParametersAreNotEditedInTheMiddleOfAStep) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture rig({.way = way, .micro_batches = 2});
    rig.train();
    const auto edit = [&] { edit_parameters(rig.model->blocks[1], [] { FAIL(); }); };
    for (int64_t done = 1; done <= 2; ++done) {
      rig.pass(done - 1);
      expect_error({"[shard]", "edit_parameters", "'block1'", "in the middle of a step"}, edit);
    }
    rig.update();
    rig.expect_alike();
    rig.train();
  }
}

TEST(ErrorsTest, ParametersAreNotEditedInsideAPass) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture rig({.way = way});
    rig.train();
    const auto edit = [&] { edit_parameters(rig.model->blocks[2], [] { FAIL(); }); };
    rig.model->blocks[1]->before = [&](const at::Tensor& x) {
      edit();
      return x;
    };
    expect_error(
        {"[shard]", "edit_parameters", "in the forward", "between passes"}, [&] { rig.forward(); });
    rig.model->blocks[1]->before = in_backward;
    InBackward::action = edit;
    auto loss = rig.forward();
    expect_error({"[shard]", "edit_parameters", "in the backward", "between passes"}, [&] {
      loss.backward();
    });
    rig.model->blocks[1]->before = nullptr;
    InBackward::action = nullptr;
    rig.expect_resting();
    rig.train();
  }
}

TEST(ErrorsTest, AnEditThatThrowsKeepsNothing) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture rig({.way = way});
    rig.train();
    expect_error({"a mistake in the edit"}, [&] {
      edit_parameters(rig.model->blocks[1], [&] {
        rig.model->blocks[1]->up->weight.zero_();
        throw std::runtime_error("a mistake in the edit");
      });
    });
    rig.expect_resting();
    rig.expect_alike();
    rig.train();
  }
}

TEST(ErrorsTest, WhatIsAskedOfTheModelIsNotAnsweredForAnInnerUnitOrAPlainModule) {
  FailureFixture rig;
  rig.train();
  const std::vector<std::pair<const char*, std::function<void(torch::nn::Module&)>>> all{
      {"micro_batches", [](auto& model) { micro_batches(model, 2); }},
      {"idle_pass", [](auto& model) { idle_pass(model); }},
      {"finish", [](auto& model) { finish(model); }},
      {"parameters", [](auto& model) { parameters(model); }},
      {"publish", [](auto& model) { publish(model); }},
      {"step", [&](auto& model) { step(model, *rig.optimizer); }},
      {"gradient_norm", [](auto& model) { gradient_norm(model); }},
      {"program", [](auto& model) { program(model); }},
      {"allocated_bytes", [](auto& model) { allocated_bytes(model); }},
      {"full_parameters", [](auto& model) { full_parameters(model); }}};
  for (const auto& [name, ask] : all) {
    SCOPED_TRACE(name);
    expect_error({"[shard]", name, "FaultyModelImpl", "not sharded", "sherd::fully_shard"}, [&] {
      ask(*rig.reference);
    });
    expect_error({"[shard]", name, "'block1'", "not the root", "pass 'FaultyModel'"}, [&] {
      ask(*rig.model->blocks[1]);
    });
  }
  expect_error({"[shard]", "edit_parameters", "FaultyModelImpl", "no unit"}, [&] {
    edit_parameters(rig.reference, [] {});
  });
  rig.train();
}

TEST(ErrorsTest, AGradientNormBeforeTheLastBackwardIsRefused) {
  FailureFixture rig({.micro_batches = 2});
  rig.pass(0);
  expect_error({"[shard]", "gradient_norm", "after 1 of the 2 backwards", "'FaultyModel'"}, [&] {
    gradient_norm(rig.model);
  });
  rig.pass(1);
  EXPECT_EQ(gradient_norm(rig.model), gradient_norm(rig.twin));
  rig.update();
  rig.expect_alike();
}

}  // namespace
}  // namespace sherd::testing
