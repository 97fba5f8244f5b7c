// SPDX-License-Identifier: Apache-2.0
// Parameters that are parts of whole ones, on several lines of ranks.
#include "shard/failure_fixture.h"
#include "shard/parted.h"
#include "shard/sharded_model.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

std::string name_of(const Division& division) {
  return c10::str(division.parts, division.two_axes ? " parts, two axes" : " parts");
}

void expect_same_bytes(const NamedTensors& one, const NamedTensors& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].first, other[i].first);
    EXPECT_TRUE(torch::equal(one[i].second, other[i].second)) << one[i].first;
  }
}

/// The sums of a reduction over nccl are in an order of its own.
void expect_same_weights(const NamedTensors& one, const NamedTensors& other) {
  if (test_world().device().is_cpu()) return expect_same_bytes(one, other);
  expect_weights(one, other, 1e-6);
}

class CutsTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(CutsTest, InitialValuesByKeyAreThoseOfTheWholeParameters) {
  const auto& way = GetParam();
  const auto initialised = [&](const Division& division) {
    auto model = make_parted({.division = division, .placement = way.placement, .meta = true});
    initialise(model, parted_values());
    return full_parameters(model);
  };
  const auto whole = initialised({1, way.two_axes});
  for (const auto& division : divisions_for(way)) {
    SCOPED_TRACE(name_of(division));
    expect_same_bytes(initialised(division), whole);
  }
}

TEST_P(CutsTest, ModulesThatAreBuiltWithValuesKeepThose) {
  const auto& way = GetParam();
  const auto whole =
      full_parameters(make_parted({.division = {1, way.two_axes}, .placement = way.placement}));
  for (const auto& division : divisions_for(way)) {
    SCOPED_TRACE(name_of(division));
    auto model = make_parted({.division = division, .placement = way.placement});
    for (const auto& item : model->named_parameters()) {
      const auto found = std::find_if(
          whole.begin(), whole.end(), [&](const auto& one) { return one.first == item.key(); });
      EXPECT_EQ(at::IntArrayRef(whole_shape(item.value())), found->second.sizes()) << item.key();
    }
    expect_same_bytes(full_parameters(model), whole);
  }
}

/// Five steps of a model with AdamW, and what was measured in each.
struct Training {
  std::vector<double> losses, norms, adamw_norms;
  std::vector<ParameterNorms> of_parameters;
  NamedTensors weights;
};

Training train(Parted model, double max_norm) {
  AdamW optimizer(model, {.lr = 0.01, .max_norm = max_norm});
  Training result;
  for (int64_t step = 0; step < 5; ++step) {
    auto loss = model(parted_input(step));
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(gradient_norm(model));
    if (step == 2) result.of_parameters = norms(model);
    optimizer.step();
    result.adamw_norms.push_back(optimizer.gradient_norm());
  }
  result.weights = full_parameters(model);
  return result;
}

void expect_near(const std::vector<double>& one, const std::vector<double>& other, double error) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], error * other[i]) << i;
}

TEST_P(CutsTest, ModelsTrainAsIfTheirParametersWereWhole) {
  const auto& way = GetParam();
  for (const auto& division : divisions_for(way)) {
    SCOPED_TRACE(name_of(division));
    const auto cut = train(make_parted({.division = division, .placement = way.placement}), 0);
    const auto whole = train(
        make_parted(
            {.division = {1, way.two_axes}, .used = division.mine(), .placement = way.placement}),
        0);
    const double error = test_world().device().is_cpu() ? 1e-12 : 1e-6;
    expect_near(cut.losses, whole.losses, error);
    expect_near(cut.norms, whole.norms, error);
    expect_near(cut.adamw_norms, cut.norms, error);
    ASSERT_EQ(cut.of_parameters.size(), whole.of_parameters.size());
    for (size_t i = 0; i < cut.of_parameters.size(); ++i) {
      const auto& [name, weight, gradient] = whole.of_parameters[i];
      EXPECT_EQ(cut.of_parameters[i].parameter, name);
      EXPECT_NEAR(cut.of_parameters[i].weight, weight, error * weight) << name;
      EXPECT_NEAR(cut.of_parameters[i].gradient, gradient, error * gradient) << name;
    }
    expect_same_weights(cut.weights, whole.weights);
  }
}

TEST_P(CutsTest, ClippingTakesTheNormOfTheWhole) {
  const auto& way = GetParam();
  for (const auto& division : divisions_for(way)) {
    SCOPED_TRACE(name_of(division));
    const auto cut = train(make_parted({.division = division, .placement = way.placement}), 0.05);
    const auto whole = train(
        make_parted(
            {.division = {1, way.two_axes}, .used = division.mine(), .placement = way.placement}),
        0.05);
    EXPECT_GT(whole.norms[0], 0.05) << "nothing is clipped";
    expect_weights(cut.weights, whole.weights, 1e-6);
  }
}

TEST_P(CutsTest, EveryElementOfTheWholeIsCountedOnce) {
  const auto& way = GetParam();
  for (const auto& division : divisions_for(way)) {
    SCOPED_TRACE(name_of(division));
    const auto model = make_parted({.division = division, .placement = way.placement});
    const ShardedModel sharded(*model, "a test");
    for (const auto& shard : sharded.shards()) {
      const int64_t mine = shard.main.numel();
      auto counts = torch::tensor(
          {static_cast<double>(shard.counted ? mine : 0),
           static_cast<double>(mine) / static_cast<double>(shard.replicas)},
          torch::TensorOptions(torch::kDouble).device(test_world().device()));
      test_world().communicator().all_reduce(counts, Reduction::sum()).synchronize();
      const auto whole = static_cast<double>(c10::multiply_integers(shard.whole_shape()));
      EXPECT_EQ(counts[0].item<double>(), whole) << shard.name;
      EXPECT_NEAR(counts[1].item<double>(), whole, 1e-9 * whole) << shard.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, CutsTest, ::testing::ValuesIn(all_ways()), [](const auto& one) {
  return one.param.name;
});

// ---- refusals -----------------------------------------------------------------------------------

struct SquareImpl : torch::nn::Module {
  explicit SquareImpl(at::IntArrayRef shape) {
    weight = register_parameter("weight", torch::ones(shape));
  }
  at::Tensor forward(const at::Tensor& x) { return (weight.square().sum() * x).sum(); }
  at::Tensor weight;
};
SHERD_MODULE(Square);

/// A model with one parameter of this shape, sharded with these options.
Square make_square(at::IntArrayRef shape, const UnitOptions& options) {
  Square model(shape);
  to_device(*model);
  fully_shard(model, options);
  return model;
}

UnitOptions with_cut(const Mesh& lines, const std::optional<Cut>& cut) {
  return {
      .mesh = shared_mesh({{"dp", test_world().size()}}),
      .rules = {{.match = "weight", .mesh = lines, .cut = cut}}};
}

struct OuterImpl : torch::nn::Module {
  explicit OuterImpl(const Square& square) : inner(register_module("inner", square)) {}
  at::Tensor forward(const at::Tensor& x) { return inner(x); }
  Square inner;
};
SHERD_MODULE(Outer);

/// The first use of a model whose ranks have rows [begin, end) of [rows, 2], on lines of one rank.
void expect_refused(
    int64_t rows, int64_t begin, int64_t end, const std::vector<std::string>& words) {
  const Mesh grid = shared_mesh({{"dp", 1}, {"part", test_world().size()}});
  auto options = with_cut(grid.sub({"dp"}), Cut{{rows, 2}, 0, {{begin, end}}});
  options.mesh = grid.sub({"dp"});  // or fully_shard would compare shapes
  Outer model(make_square({end - begin, 2}, options));
  fully_shard(model, {.mesh = shared_mesh({{"dp", test_world().size()}})});
  expect_error(words, [&] { program(model); });
}

TEST(CutErrorsTest, PartsThatDoNotMakeTheWholeAreNamed) {
  const int64_t ranks = test_world().size();
  const int64_t rank = test_world().rank();
  if (ranks == 1)
    return expect_refused(4, 0, 3, {"'inner.weight'", "no rank has rows 3..4 of [4, 2]"});
  // The last rank's rows are another's, or one further.
  const bool last = rank + 1 == ranks;
  expect_refused(
      2 * ranks + 1, 2 * rank + (last ? 1 : 0), 2 * rank + (last ? 3 : 2),
      {"[shard]", "'inner.weight'",
       c10::str("no rank has rows ", 2 * ranks - 2, "..", 2 * ranks - 1, " of [", 2 * ranks + 1),
       "ParameterRule::cut"});
  expect_refused(
      2 * ranks, 2 * rank, 2 * rank + 2 - (last ? 1 : 0),
      {"[shard.agree]", "'inner.weight'", "parts of [2, 2]", "parts of [1, 2]", "same size"});
  expect_refused(
      2 * ranks - 1, 2 * rank - (last ? 1 : 0), 2 * rank + 2 - (last ? 1 : 0),
      {"[shard]", "'inner.weight'", c10::str("rows ", 2 * ranks - 3, "..", 2 * ranks - 2, " of ["),
       c10::str("rank ", ranks - 2, " and rank ", ranks - 1), "correct the cuts",
       "ParameterRule::cut"});
  expect_refused(
      2 * ranks + (last ? 2 : 0), 2 * rank, 2 * rank + 2,
      {"[shard.agree]", "'inner.weight'", c10::str("[", 2 * ranks, ", 2]"),
       c10::str("[", 2 * ranks + 2, ", 2]"), c10::str("rank ", ranks - 1)});
}

TEST(CutErrorsTest, APartOnSeveralLinesIsRefused) {
  if (test_world().size() == 1) return;  // it would have the whole
  expect_refused(
      4, 0, 4,
      {"[shard]", "'inner.weight'", "rows 0..4 of [4, 2] are in the parts of rank 0 and rank 1",
       "not added", "Mesh::flatten"});
}

TEST(CutErrorsTest, RanksOfOneLineWithDifferentPartsAreNamed) {
  if (test_world().size() == 1) return;
  const int64_t rank = test_world().rank() == 0 ? 0 : 1;
  auto model = make_square(
      {2, 2},
      with_cut(
          shared_mesh({{"dp", test_world().size()}}), Cut{{4, 2}, 0, {{2 * rank, 2 * rank + 2}}}));
  expect_error(
      {"[shard]", "'weight'", "rows 0..2 of [4, 2] on rank 0", "rows 2..4 of [4, 2] on rank 1",
       "shard it together"},
      [&] { program(model); });
}

TEST(CutErrorsTest, AParameterOfSomeRanksNeedsACut) {
  const int64_t ranks = test_world().size();
  if (ranks == 1) return;
  const Mesh grid = shared_mesh({{"dp", 1}, {"part", ranks}});
  auto model = make_square({4, 2}, with_cut(grid.sub({"dp"}), std::nullopt));
  expect_error(
      {"[shard]", "'weight'", c10::str("1 of the world's ", ranks, " ranks"), "ParameterRule::cut"},
      [&] { program(model); });
  auto root = make_square({4, 2}, {.mesh = grid.sub({"dp"})});
  expect_error(
      {"[shard]", "root 'Square'", c10::str("1 of the world's ", ranks, " ranks"), "Mesh::flatten"},
      [&] { program(root); });
}

TEST(CutErrorsTest, ACutThatIsNotThatOfTheParameterIsRefused) {
  const auto all = shared_mesh({{"dp", test_world().size()}});
  expect_error(
      {"[shard]", "'weight'", "[4, 2]", "rows 0..2 of [4, 2]", "[2, 2]", "ParameterRule::cut"},
      [&] {
        make_square({4, 2}, with_cut(all, Cut{{4, 2}, 0, {{0, 2}}}));
      });
  expect_error({"[plan.cut]", "'weight'", "3..5", "[4, 2]"}, [&] {
    make_square({2, 2}, with_cut(all, Cut{{4, 2}, 0, {{3, 5}}}));
  });
}

TEST(CutErrorsTest, AWrongCutOfOneRankIsNamedOnAll) {
  if (test_world().size() == 1) return;
  const Mesh all = shared_mesh({{"dp", test_world().size()}});
  const int64_t end = test_world().rank() == 1 ? 5 : 2;
  expect_error({"[shard.agree]", "rank 1", "'weight'", "3..5", "[4, 2]"}, [&] {
    make_square({2, 2}, with_cut(all, Cut{{4, 2}, 0, {{end - 2, end}}}));
  });
}

struct LinearsImpl : torch::nn::Module {
  LinearsImpl() { linear = register_module("linear", torch::nn::Linear(3, 2)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).sum(); }
  torch::nn::Linear linear{nullptr};
};
SHERD_MODULE(Linears);

TEST(CutErrorsTest, AModuleSetsNoPartOfAParameter) {
  const int64_t ranks = test_world().size();
  const Mesh grid = shared_mesh({{"dp", 1}, {"part", ranks}});
  const int64_t rank = test_world().rank();
  auto model = [] {
    const MetaDevice meta;
    return Linears();
  }();
  fully_shard(
      model, {.mesh = shared_mesh({{"dp", ranks}}),
              .rules = rules_cutting_into(ranks, rank, *model, grid.sub({"dp"}))});
  if (ranks > 1) {
    expect_error(
        {"[shard]", "'linear.weight'", c10::str("of [", 2 * ranks, ", 3]"), "reset_parameters",
         "InitialiseOptions::values"},
        [&] { initialise(model); });
  }
  initialise(model, {.values = [](const std::string&, at::IntArrayRef) {
               return std::optional(InitialValues::normal(0, 1));
             }});
  const auto weights = full_parameters(model);
  EXPECT_EQ(weights[0].second.sizes(), at::IntArrayRef({2 * ranks, 3}));
}

}  // namespace
}  // namespace sherd::testing
