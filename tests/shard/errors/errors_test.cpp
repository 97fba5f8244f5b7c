// SPDX-License-Identifier: Apache-2.0
// Sharding in a wrong way, and touching what is not there: an error that says what to do instead.
#include <torch/nn/modules/container/sequential.h>

#include "shard/failure_fixture.h"

namespace sherd::testing {
namespace {

Mesh flat_mesh() {
  return mesh_for({});
}

Perceptron small_model() {
  torch::manual_seed(2);
  Perceptron model;
  to_device(*model);
  return model;
}

at::Tensor loss_of(Perceptron& model) {
  const auto device = test_world().device();
  return model(torch::ones({2, 7}).to(device), torch::zeros({2, 3}).to(device));
}

/// One step; the loss after it is smaller.
void expect_trains(Perceptron& model) {
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
  auto loss = loss_of(model);
  loss.backward();
  step(model, *optimizer);
  const torch::NoGradGuard no_grad;
  EXPECT_LT(loss_of(model).item<float>(), loss.item<float>());
}

void shard_all(Perceptron& model, const UnitOptions& options, const RootOptions& root = {}) {
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options, root);
}

TEST(ErrorsTest, ShardingAModuleTwiceNamesIt) {
  auto model = small_model();
  const UnitOptions options{.mesh = flat_mesh()};
  shard_all(model, options);
  expect_error(
      {"[shard]", "'Perceptron' is sharded already", "once"}, [&] { fully_shard(model, options); });
  program(model);  // from now on units are known by their paths
  expect_error({"'block1' is sharded already"}, [&] { fully_shard(model->blocks[1], options); });
  expect_trains(model);
}

TEST(ErrorsTest, ShardingAnInnerModuleAfterTheOuterOneSaysToShardItFirst) {
  auto model = small_model();
  const UnitOptions options{.mesh = flat_mesh()};
  fully_shard(model, options);
  expect_error({"[shard]", "'Perceptron'", "'up.weight'", "shard inner modules first"}, [&] {
    fully_shard(model->blocks[1], options);
  });
  expect_trains(model);
}

struct NothingImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
SHERD_MODULE(Nothing);

/// It owns no parameter that would tell the order, but it is in the wrong place all the same.
TEST(ErrorsTest, ShardingAnInnerModuleWithoutParametersAfterTheOuterOneIsFoundAtTheFirstCall) {
  auto model = small_model();
  auto inner = model->register_module("inner", Nothing());
  const UnitOptions options{.mesh = flat_mesh()};
  fully_shard(model, options);
  fully_shard(inner, options);
  expect_error({"'inner'", "'Perceptron'", "shard inner modules first"}, [&] { loss_of(model); });
}

TEST(ErrorsTest, ANegativePrefetchDepthIsRefusedWithItsValue) {
  auto model = small_model();
  const UnitOptions options{.mesh = flat_mesh()};
  expect_error({"[shard]", "'Perceptron'", "prefetch_depth is -2", "0 or more"}, [&] {
    fully_shard(model, options, {.prefetch_depth = -2});
  });
  shard_all(model, options, {.prefetch_depth = 0});
  expect_trains(model);
}

TEST(ErrorsTest, RootOptionsOfAnInnerUnitAreRefusedAtTheFirstUseWithTheirNames) {
  const UnitOptions options{.mesh = flat_mesh()};
  const std::vector<std::pair<RootOptions, std::string>> cases{
      {{.prefetch_depth = 2}, "root options (prefetch_depth)"},
      {{.loss = Loss::sum, .budget = 1 << 30}, "root options (loss, budget)"},
      {{.memory = MemoryKind::eager, .symmetric = true}, "root options (memory, symmetric)"},
      {{}, "root options, but"}};  // given, though every one has its default
  for (const auto& [root, words] : cases) {
    auto model = small_model();
    for (size_t i = 0; i < model->blocks.size(); ++i) {
      if (i == 1) {
        fully_shard(model->blocks[i], options, root);
      } else {
        fully_shard(model->blocks[i], options);
      }
    }
    fully_shard(model, options, {.prefetch_depth = 0});
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_error(
          {"[shard]", "unit 'block1' has " + words, "inside 'Perceptron'",
           "give them to fully_shard of 'Perceptron' only"},
          [&] { loss_of(model); });
    }
  }
}

/// A model that was a root with options of its own, and is then made a part of another.
TEST(ErrorsTest, RootOptionsOfAModelThatBecomesPartOfAnotherAreRefused) {
  auto model = small_model();
  const UnitOptions options{.mesh = flat_mesh()};
  shard_all(model, options, {.prefetch_depth = 2});
  expect_trains(model);
  torch::nn::Sequential around(model);
  fully_shard(around, options);
  expect_error({"[shard]", "unit '0' has root options (prefetch_depth)", "'Sequential'"}, [&] {
    program(*around);
  });
}

/// Twice: what is wrong stays wrong.
void expect_refused_at_first_use(Perceptron& model, const std::vector<std::string>& words) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_error(words, [&] { loss_of(model); });
    expect_error(words, [&] { program(model); });
  }
}

TEST(ErrorsTest, ARuleThatMatchesNoParameterOfAnyUnitIsRefusedWithTheirNames) {
  const auto precision = Precision::recipe("fp32");
  const auto rule = [&](const char* match) {
    return UnitOptions{.mesh = flat_mesh(), .rules = {{.match = match, .precision = precision}}};
  };
  auto misspelt = small_model();
  shard_all(misspelt, rule("*.wieght"));
  expect_refused_at_first_use(
      misspelt, {"[shard]", "rule '*.wieght' of unit 'block0'", "'up.weight', 'up.bias'",
                 "correct the pattern or remove the rule"});
  // Names are those within the unit, and those of units inside it are not its own.
  auto outside = small_model();
  for (auto& block : outside->blocks) fully_shard(block, {.mesh = flat_mesh()});
  fully_shard(outside, rule("block0.*"));
  expect_refused_at_first_use(
      outside, {"rule 'block0.*' of unit 'Perceptron'", "'in.weight'", "a unit inside it"});
}

TEST(ErrorsTest, AnIgnoredPatternThatMatchesNoParameterOfAnyUnitIsRefused) {
  auto model = small_model();
  for (auto& block : model->blocks) {
    fully_shard(block, {.mesh = flat_mesh(), .ignored = {"up.bais"}});
  }
  fully_shard(model, {.mesh = flat_mesh()});
  expect_refused_at_first_use(
      model, {"[shard]", "'up.bais' in the `ignored` of unit 'block0'", "'up.weight', 'up.bias'",
              "correct the pattern or remove it"});
}

TEST(ErrorsTest, PatternsThatMatchInSomeOfTheUnitsThatHaveThemAreNoMistake) {
  UnitOptions options{.mesh = flat_mesh()};
  options.rules = {
      {.match = "up.*", .granule = Granule::rows()},        // of blocks only
      {.match = "out.weight", .granule = Granule::whole()}  // of the root only
  };
  options.ignored = {"down.bias", "in.bias"};
  auto model = small_model();
  shard_all(model, options);
  EXPECT_NO_THROW(program(model));
  expect_trains(model);
}

/// The outer unit's pattern has a parameter that the inner one's has already.
TEST(ErrorsTest, AnIgnoredPatternMayMatchWhatAnInnerUnitIgnores) {
  auto model = small_model();
  for (auto& block : model->blocks) {
    fully_shard(block, {.mesh = flat_mesh(), .ignored = {"down.bias"}});
  }
  fully_shard(model, {.mesh = flat_mesh(), .ignored = {"*.down.bias"}});
  EXPECT_NO_THROW(program(model));
}

TEST(ErrorsTest, AMeshWithoutTheDataAxisIsRefusedWithTheAxis) {
  auto model = small_model();
  const UnitOptions options{.mesh = Mesh(test_world(), {{"tp", test_world().size()}})};
  expect_error(
      {"[shard]", "'Perceptron'", "'dp'", "options.axes"}, [&] { fully_shard(model, options); });
  UnitOptions named{.mesh = flat_mesh()};
  named.axes = DataAxes{"dp", "pods"};
  expect_error({"[shard]", "'pods'", "options.axes"}, [&] { fully_shard(model, named); });
  shard_all(model, {.mesh = flat_mesh()});
  expect_trains(model);
}

TEST(ErrorsTest, AMeshWithAnAxisOfUnknownUseIsRefusedWithTheAxis) {
  const int64_t ranks = test_world().size();
  auto model = small_model();
  const UnitOptions options{.mesh = shared_mesh({{"dp", 1}, {"tp", ranks}})};
  if (ranks > 1) {
    expect_error(
        {"[shard]", "'Perceptron'", "'tp'", c10::str(ranks, " ranks"), "Mesh::flatten", "Mesh::sub",
         "ParameterRule::cut"},
        [&] { fully_shard(model, options); });
    // A rule's mesh, too.
    UnitOptions rule{.mesh = flat_mesh()};
    rule.rules = {{.match = "out.*", .mesh = options.mesh}};
    expect_error({"[shard]", "'out.weight'", "'tp'"}, [&] { fully_shard(model, rule); });
    shard_all(model, {.mesh = flat_mesh()});
  } else {
    shard_all(model, options);  // alone it is no one else's
  }
  expect_trains(model);
}

TEST(ErrorsTest, ShardingOverAnOuterAxisThatIsNotThereNamesTheParameter) {
  using enum Strategy;
  auto model = small_model();
  const UnitOptions options{.mesh = flat_mesh(), .placement = Placement(optim_grads_params, optim)};
  expect_error(
      {"[shard]", "'in.weight'", "dp_outer", "options.axes"}, [&] { fully_shard(model, options); });
  shard_all(model, {.mesh = flat_mesh()});
  expect_trains(model);
}

/// The rule fits the last of the parameters: none may have been taken by then.
TEST(ErrorsTest, ARuleWithAMeshThatLacksTheAxisNamesItAndLeavesTheModuleAsItWas) {
  auto model = small_model();
  const auto before = model->out->bias.detach().clone();
  UnitOptions options{.mesh = flat_mesh()};
  options.rules = {
      {.match = "out.bias", .mesh = Mesh(test_world(), {{"tp", test_world().size()}})}};
  expect_error({"out.bias", "'dp'"}, [&] { fully_shard(model, options); });
  EXPECT_TRUE(torch::equal(model->out->bias.detach(), before));
  EXPECT_GT(model->in->weight.abs().sum().item<float>(), 0);
  shard_all(model, {.mesh = flat_mesh()});
  expect_trains(model);
}

TEST(ErrorsTest, ABudgetBelowThePeakIsRefusedWithBothNumbers) {
  auto roomy = small_model();
  shard_all(roomy, {.mesh = flat_mesh()});
  const int64_t peak = program(roomy).bytes().peak();
  auto exact = small_model();
  const UnitOptions options{.mesh = flat_mesh()};
  shard_all(exact, options, {.budget = peak});
  expect_trains(exact);
  auto tight = small_model();
  shard_all(tight, options, {.budget = peak - 1});
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_error(
        {std::to_string(peak), std::to_string(peak - 1), "budget"}, [&] { loss_of(tight); });
  }
}

/// Known only when the first pass has shown that a recompute keeps all blocks gathered.
TEST(ErrorsTest, ABudgetThatTheOrderOfTheFirstPassExceedsIsRefusedWithBothNumbers) {
  const auto sharded = [](int64_t budget) {
    FaultyModel model(FaultyModelImpl::Recompute::around_blocks);
    to_device(*model);
    const UnitOptions options{.mesh = flat_mesh()};
    for (auto& block : model->blocks) fully_shard(block, options);
    // Without prefetching: else what is gathered ahead takes as much.
    fully_shard(model, options, {.prefetch_depth = 0, .budget = budget});
    return model;
  };
  const auto loss = [](FaultyModel& model) {
    const auto device = test_world().device();
    return model(torch::ones({2, 7}).to(device), torch::zeros({2, 3}).to(device));
  };
  auto roomy = sharded(0);
  const int64_t before = program(roomy).bytes().peak();
  loss(roomy).backward();
  const int64_t after = program(roomy).bytes().peak();
  ASSERT_GT(after, before);
  auto tight = sharded(before);
  expect_error(
      {std::to_string(after), std::to_string(before), "budget"}, [&] { loss(tight).backward(); });
}

TEST(ErrorsTest, PrefetchingForAUnitThatContainsOthersIsRefused) {
  FaultyModel model;
  to_device(*model);
  const UnitOptions options{.mesh = mesh_for({})};
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, {.mesh = mesh_for({}), .prefetch = {model->blocks[0].ptr()}});
  expect_error(
      {"[shard]", "'FaultyModel' contains other units", "prefetch"}, [&] { program(model); });
}

TEST(ErrorsTest, PrefetchingAModuleThatIsNoUnitNamesTheUnitThatAsksForIt) {
  auto model = small_model();
  UnitOptions options{.mesh = flat_mesh()};
  options.prefetch = {model->in.ptr()};
  fully_shard(model->blocks[0], options);
  fully_shard(model, {.mesh = flat_mesh()});
  expect_error({"[shard]", "'block0'", "prefetch", "shard it first"}, [&] { loss_of(model); });
}

// ---- touching what is not there -----------------------------------------------------------------

TEST(ErrorsTest, AForwardPastTheBoundaryNamesTheUnitAndTheHolder) {
  FailureFixture fixture;
  fixture.train();
  const auto x = torch::ones({4, 10}).to(test_world().device());
  const auto remedy = {
      std::string("[shard]"), std::string("'block1' are released"), std::string("SHERD_MODULE"),
      std::string("sherd::call")};
  expect_error(remedy, [&] { fixture.model->blocks[1]->forward(x); });
  torch::nn::ModuleHolder<FaultyBlockImpl> plain(fixture.model->blocks[1].ptr());
  expect_error(remedy, [&] { plain->forward(x); });
  // And inside a pass, where the unit would have to be gathered.
  fixture.model->blocks[0]->after = [&](const at::Tensor& y) { return plain->forward(y); };
  expect_error(remedy, [&] { fixture.forward(); });
  fixture.model->blocks[0]->after = nullptr;
  fixture.expect_resting();
  fixture.train();
}

struct WithTorchHolderImpl : torch::nn::Module {
  WithTorchHolderImpl() { linear = register_module("linear", torch::nn::Linear(7, 3)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).square().sum(); }
  torch::nn::Linear linear{nullptr};
};
SHERD_MODULE(WithTorchHolder);

/// Where weights are replicated nothing is released, but the gradients come from a call that the
/// runtime does not see: without an error they would be lost.
TEST(ErrorsTest, AUnitCalledThroughTorchsHolderIsAnErrorWhateverIsSharded) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    WithTorchHolder model;
    to_device(*model);
    const UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
    fully_shard(model->linear, options);
    fully_shard(model, options);
    expect_error({"[shard]", "'linear'", "sherd::call"}, [&] {
      model(torch::ones({2, 7}).to(test_world().device())).backward();
    });
  }
}

TEST(ErrorsTest, ReadingOrWritingAReleasedParameterNamesTheUnit) {
  FailureFixture fixture;
  fixture.train();
  const torch::NoGradGuard no_grad;
  auto& weight = fixture.model->blocks[2]->up->weight;
  expect_error({"[shard]", "'block2' are released"}, [&] { weight.sum().item<float>(); });
  expect_error({"[shard]", "'block2' are released"}, [&] { weight.clone(); });
  expect_error({"[shard]", "'block2' are released"}, [&] { weight.zero_(); });
  expect_error({"[shard]", "'block2' are released"}, [&] { weight.mutable_data_ptr(); });
  expect_error(
      {"'FaultyModel' are released"}, [&] { fixture.model->in->weight.sum().item<float>(); });
  EXPECT_EQ(weight.sizes(), at::IntArrayRef({21, 10}));
  torch::AutoGradMode grad(true);
  fixture.train();
}

/// ZeRO-1 and 2 keep whole weights, which after an update are this rank's part new, the rest old.
TEST(ErrorsTest, ReadingAParameterBetweenUpdateAndForwardNamesTheUnitAndTheRemedy) {
  if (test_world().size() == 1) return;  // all of it is this rank's part
  for (const auto strategy : {Strategy::optim, Strategy::optim_grads}) {
    FailureFixture fixture({.way = {"", Placement(strategy)}});
    fixture.train();
    expect_error({"[shard]", "'block2' are released", "sherd::full_parameters"}, [&] {
      fixture.model->blocks[2]->up->weight.sum().item<float>();
    });
    fixture.train();
  }
}

TEST(ErrorsTest, AnInnerUnitCalledOutsideItsRootNamesBoth) {
  FailureFixture fixture;
  fixture.train();
  const auto x = torch::ones({4, 10}).to(test_world().device());
  expect_error({"[shard]", "'block1'", "outside its root 'FaultyModel'", "call the root"}, [&] {
    fixture.model->blocks[1](x);
  });
  fixture.expect_resting();
  fixture.train();
}

TEST(ErrorsTest, AModelThatLostAUnitIsRefused) {
  FailureFixture fixture;
  fixture.train();
  fixture.model->unregister_module("block1");
  fixture.model->blocks.erase(fixture.model->blocks.begin() + 1);
  expect_error({"[shard]", "deleted", "shard the model anew"}, [&] { fixture.forward(); });
}

}  // namespace
}  // namespace sherd::testing
