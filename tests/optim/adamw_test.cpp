// SPDX-License-Identifier: Apache-2.0
// AdamW on sharded models.
#include "sherd/optim/adamw.h"

#include <torch/nn/utils/clip_grad.h>

#include "optim/flat_model.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

class AdamWRanks : public ::testing::TestWithParam<ShardingCase> {
 protected:
  UnitOptions options() const { return options_for(GetParam()); }
};

TEST_P(AdamWRanks, EqualsTorchsOverAHundredStepsOfTheSameGradients) {
  auto model = make_sharded_flat_model(options());
  auto reference = make_flat_model();
  AdamW optimizer(model, {.lr = 2e-3, .weight_decay = 0.1});
  torch::optim::AdamW torchs(
      reference->parameters(), torch::optim::AdamWOptions(2e-3).weight_decay(0.1));
  train_both(model, optimizer, reference, torchs, 100);
  expect_weights(full_parameters(model), *reference, 1e-6);
  EXPECT_EQ(optimizer.updates(), 100);
}

TEST_P(AdamWRanks, AFrozenParameterStaysAndGoesOnFromThere) {
  auto model = make_sharded_flat_model(options());
  auto reference = make_flat_model();
  AdamW optimizer(model, {.lr = 2e-3, .weight_decay = 0.1});
  torch::optim::AdamW torchs(
      reference->parameters(), torch::optim::AdamWOptions(2e-3).weight_decay(0.1));
  // Some from the start, some after a while, some of them smaller than the number of ranks.
  const auto set_trainable = [&](size_t unit, bool trainable) {
    for (auto* each : {&model, &reference}) {
      for (const size_t i : {0u, 1u, 2u}) {
        (*each)->units[unit]->weights[i].set_requires_grad(trainable);
      }
    }
  };
  const auto moments_of = [&](const std::string& unit) {
    std::vector<at::Tensor> result;
    for (const auto& [name, first, second] : optimizer.moments()) {
      if (!name.starts_with(unit) || name.back() > '2') continue;
      result.push_back(first.clone());
      result.push_back(second.clone());
    }
    return result;
  };
  set_trainable(0, false);
  train_both(model, optimizer, reference, torchs, 5);
  expect_weights(full_parameters(model), *reference, 1e-6);
  set_trainable(1, false);
  const auto moments = moments_of("unit1.");
  train_both(model, optimizer, reference, torchs, 5, 5);
  expect_weights(full_parameters(model), *reference, 1e-6);
  expect_same_bits(moments_of("unit1."), moments);
  // Another optimizer goes on from there, as after a checkpoint.
  AdamW resumed(model, {.lr = 2e-3, .weight_decay = 0.1});
  for (size_t i = 0; i < optimizer.moments().size(); ++i) {
    resumed.moments()[i].first.copy_(optimizer.moments()[i].first);
    resumed.moments()[i].second.copy_(optimizer.moments()[i].second);
  }
  resumed.set_progress(optimizer.progress());
  set_trainable(0, true);
  train_both(model, resumed, reference, torchs, 5, 10);
  set_trainable(1, true);
  train_both(model, resumed, reference, torchs, 5, 15);
  expect_weights(full_parameters(model), *reference, 1e-6);
  EXPECT_EQ(resumed.updates(), 20);
}

TEST_P(AdamWRanks, ClipsByTheNormOfTheUnshardedModel) {
  auto model = make_sharded_flat_model(options());
  auto reference = make_flat_model();
  AdamW optimizer(model, {.lr = 2e-3, .max_norm = 3});
  torch::optim::AdamW torchs(
      reference->parameters(), torch::optim::AdamWOptions(2e-3).weight_decay(0.01));
  for (int64_t step = 0; step < 10; ++step) {
    model(step).backward();
    optimizer.step();
    reference->zero_grad();
    reference->forward(step).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), 3);
    EXPECT_NEAR(optimizer.gradient_norm(), norm, 1e-6 * norm);
    torchs.step();
  }
  expect_weights(full_parameters(model), *reference, 1e-5);
}

TEST_P(AdamWRanks, ConstructingItChangesNothing) {
  auto model = make_sharded_flat_model(options());
  const auto before = full_parameters(model);
  const auto bytes = allocated_bytes(model);
  const AdamW optimizer(model);
  const auto after = full_parameters(model);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(before[i].second, after[i].second)) << before[i].first;
  }
  EXPECT_EQ(allocated_bytes(model), bytes);
}

TEST_P(AdamWRanks, ARuleThatMatchesNoParameterIsRefusedWithNamesThatExist) {
  auto model = make_sharded_flat_model(options());
  expect_error({"[optim] AdamW", "'*.wieght1'", "'unit0.", "more", "correct the pattern"}, [&] {
    AdamW(model, {.rules = {{.match = "*.weight1", .lr_factor = 0.5}, {.match = "*.wieght1"}}});
  });
}

TEST_P(AdamWRanks, RulesByNameReachTheirParametersAlone) {
  auto model = make_sharded_flat_model(options());
  auto reference = make_flat_model();
  AdamW optimizer(
      model, {.lr = 1e-2,
              .weight_decay = 0.1,
              .rules = {
                  {.match = "*.weight1", .lr_factor = 0.5, .weight_decay = 0},
                  {.match = "unit2.*", .beta1 = 0.5, .beta2 = 0.9, .eps = 1e-4},
                  {.match = "scale", .lr_factor = 0}}});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& item : reference->named_parameters()) {
    const bool second = item.key().ends_with(".weight1"), last = item.key().starts_with("unit2.");
    auto settings = std::make_unique<torch::optim::AdamWOptions>(
        item.key() == "scale" ? 0
        : second              ? 5e-3
                              : 1e-2);
    settings->weight_decay(second ? 0 : 0.1);
    if (last) settings->betas({0.5, 0.9}).eps(1e-4);
    groups.emplace_back(std::vector<at::Tensor>{item.value()}, std::move(settings));
  }
  torch::optim::AdamW torchs(groups, torch::optim::AdamWOptions(1e-2));
  train_both(model, optimizer, reference, torchs, 10);
  expect_weights(full_parameters(model), *reference, 1e-6);
}

TEST_P(AdamWRanks, TheRateMayChangeBetweenSteps) {
  auto model = make_sharded_flat_model(options());
  auto reference = make_flat_model();
  AdamW optimizer(model, {.lr = 0.5});
  torch::optim::AdamW torchs(reference->parameters(), torch::optim::AdamWOptions(0.5));
  for (int64_t step = 0; step < 10; ++step) {
    const double lr = 1e-3 * static_cast<double>(step + 1);
    optimizer.set_lr(lr);
    torchs.param_groups()[0].options().set_lr(lr);
    train_both(model, optimizer, reference, torchs, 1, step);
  }
  EXPECT_DOUBLE_EQ(optimizer.lr(), 1e-2);
  expect_weights(full_parameters(model), *reference, 1e-6);
}

TEST_P(AdamWRanks, ALossPerTokenIsDividedByAllTokens) {
  auto model = make_sharded_flat_model(options(), {.loss = Loss::per_token});
  auto reference = make_flat_model();
  AdamW optimizer(model, {.lr = 1e-2, .max_norm = 1});
  torch::optim::AdamW torchs(
      reference->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.01));
  const int64_t ranks = test_world().size(), rank = test_world().rank();
  for (int64_t step = 0; step < 5; ++step) {
    model(step).backward();
    if (rank == 0) {  // the others wait until it has corrected itself
      expect_error({"[optim]", "per token", ".tokens"}, [&] { optimizer.step(); });
    }
    optimizer.step({.tokens = 3 + rank});
    int64_t tokens = 0;
    for (int64_t other = 0; other < ranks; ++other) tokens += 3 + other;
    reference->zero_grad();
    (reference->forward(step) * ranks / tokens).backward();
    torch::nn::utils::clip_grad_norm_(reference->parameters(), 1);
    torchs.step();
  }
  expect_weights(full_parameters(model), *reference, 1e-5);
}

TEST_P(AdamWRanks, AStepWithoutTokensChangesNothing) {
  for (const bool scaled : {false, true}) {
    auto model = make_sharded_flat_model(options(), {.loss = Loss::per_token});
    AdamWOptions settings;
    if (scaled) settings.scaling = LossScaling{.initial = 8};
    AdamW optimizer(model, settings);
    const auto before = full_parameters(model);
    optimizer.scale(model(0)).backward();
    if (scaled || test_world().device().is_cuda()) {
      optimizer.step({.tokens = 0});
    } else {
      expect_error(
          {"[optim] step 1 of", "no tokens on any rank"}, [&] { optimizer.step({.tokens = 0}); });
    }
    EXPECT_EQ(optimizer.updates(), 0);
    EXPECT_EQ(optimizer.loss_scale(), scaled ? 8 : 1) << "nothing has overflowed";
    const auto after = full_parameters(model);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(torch::equal(before[i].second, after[i].second)) << before[i].first;
    }
  }
}

TEST_P(AdamWRanks, AGradientThatIsNotFiniteIsNamedAndChangesNothing) {
  auto model = make_sharded_flat_model(options());
  AdamW optimizer(model);
  model(0).backward();
  optimizer.step();
  const auto before = full_parameters(model);
  const bool last = test_world().rank() == test_world().size() - 1;
  const auto bad = std::numeric_limits<float>::quiet_NaN();
  auto loss = model(1);
  (last ? loss * bad : loss).backward();  // one rank's loss is broken
  if (test_world().device().is_cuda()) return optimizer.step();
  expect_error(
      {"[shard.watch] the gradient of parameter '", "is NaN in micro-batch 1 of step 2",
       "no weight was changed"},
      [&] { optimizer.step(); });
  const auto after = full_parameters(model);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(before[i].second, after[i].second)) << before[i].first;
  }
  model(2).backward();
  optimizer.step();
  EXPECT_EQ(optimizer.updates(), 2);
}

TEST_P(AdamWRanks, AScaledLossGivesTheSameUpdatesAndSkipsWhatOverflows) {
  auto model = make_sharded_flat_model(options());
  auto reference = make_flat_model();
  AdamW optimizer(model, {.lr = 1e-2, .scaling = LossScaling{.initial = 1024, .interval = 3}});
  torch::optim::AdamW torchs(
      reference->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.01));
  for (int64_t step = 0; step < 7; ++step) {
    auto loss = optimizer.scale(model(step));
    (step == 4 ? loss * std::numeric_limits<float>::infinity() : loss).backward();
    optimizer.step();
    if (step == 4) continue;
    reference->zero_grad();
    reference->forward(step).backward();
    torchs.step();
  }
  EXPECT_EQ(optimizer.updates(), 6);
  EXPECT_EQ(optimizer.loss_scale(), 1024) << "doubled after three, halved by the fifth";
  expect_weights(full_parameters(model), *reference, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Ways, AdamWRanks, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

TEST(AdamWErrors, OptionsOutOfRangeNameTheKeyAndTheValue) {
  auto model = make_sharded_flat_model({.mesh = mesh_for({})});
  program(model);  // from now on its units are its own
  expect_error({"[optim] AdamW: lr is -1"}, [&] { AdamW(model, {.lr = -1}); });
  expect_error({"beta1 is 1;"}, [&] { AdamW(model, {.beta1 = 1}); });
  expect_error({"beta2 is -0.5;"}, [&] { AdamW(model, {.beta2 = -0.5}); });
  expect_error({"max_norm is -2;"}, [&] { AdamW(model, {.max_norm = -2}); });
  expect_error({"beta1 of the rule '*.weight1' is 2;"}, [&] {
    AdamW(model, {.rules = {{.match = "*.weight1", .beta1 = 2}}});
  });
  expect_error({"states is Half"}, [&] { AdamW(model, {.states = c10::kHalf}); });
  expect_error(
      {"scaling.backoff is 2;"}, [&] { AdamW(model, {.scaling = LossScaling{.backoff = 2}}); });
  expect_error({"AdamW is called with", "not sharded"}, [&] { AdamW{make_flat_model()}; });
  expect_error({"AdamW is called with unit", "not the root"}, [&] { AdamW{model->units[0]}; });
}

TEST(AdamWErrors, AStepBeforeTheLastBackwardNamesBothNumbers) {
  auto model = make_sharded_flat_model({.mesh = mesh_for({})});
  AdamW optimizer(model);
  micro_batches(model, 2);
  model(0).backward();
  expect_error({"optimizer.step() after 1 of the 2 backwards"}, [&] { optimizer.step(); });
  model(1).backward();
  optimizer.step();
}

TEST(AdamWErrors, AnOptimizerWhoseModelIsGoneSaysSo) {
  auto model = make_sharded_flat_model({.mesh = mesh_for({})});
  AdamW optimizer(model);
  model = nullptr;
  expect_error({"[optim] the model of this optimizer is gone"}, [&] { optimizer.step(); });
}

}  // namespace
}  // namespace sherd::testing
