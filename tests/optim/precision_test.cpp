// SPDX-License-Identifier: Apache-2.0
// Every recipe against the same recipe unsharded, and what its dtypes promise.
#include "sherd/shard/precision.h"

#include <ATen/autocast_mode.h>

#include "shard/failure_fixture.h"
#include "shard/twin.h"
#include "sherd/optim/adamw.h"

namespace sherd::testing {
namespace {

constexpr int64_t kSteps = 10;
constexpr double kLr = 3e-3;

struct Recipe {
  std::string name;
  Precision precision;
  bool scaled = false;
};

std::vector<Recipe> recipes() {
  std::vector<Recipe> result;
  for (const auto& name : Precision::recipes()) {
    if (Precision::recipe(name).fp8 != Fp8::none) continue;  // fp8_test.cpp
    result.push_back({name, Precision::recipe(name), name == "fp16"});
  }
  auto narrow_wire = Precision::recipe("bf16_o2");
  narrow_wire.reduce = torch::kBFloat16;
  result.push_back({"bf16_o2_with_bf16_on_the_wire", narrow_wire});
  auto narrow_gradient = Precision::recipe("bf16_o2");
  narrow_gradient.gradient = narrow_gradient.reduce = torch::kBFloat16;
  result.push_back({"bf16_o2_with_bf16_gradients", narrow_gradient});
  result.push_back(
      {"fp16_with_fp16_on_the_wire",
       {.compute = torch::kHalf, .main = torch::kFloat, .reduce = torch::kHalf},
       true});
  return result;
}

Chain make_chain() {
  torch::manual_seed(3);
  Chain model(3);
  to_device(*model);
  return model;
}

std::optional<LossScaling> scaling(const Recipe& recipe) {
  return recipe.scaled ? std::optional(LossScaling{.initial = 256}) : std::nullopt;
}

NamedTensors train_sharded(
    const Recipe& recipe,
    const ShardingCase& way,
    int64_t micro,
    std::vector<double>* losses = nullptr) {
  auto model = make_chain();
  auto options = options_for(way);
  options.precision = recipe.precision;
  Twin::shard_in_order(model, options);
  micro_batches(model, micro);
  AdamW optimizer(model, {.lr = kLr, .max_norm = 10, .scaling = scaling(recipe)});
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t batch = 0; batch < micro; ++batch) {
      auto loss = model(chain_input(test_world().rank(), step, batch));
      if (losses) losses->push_back(loss.item<double>());
      optimizer.scale(loss).backward();
    }
    optimizer.step();
  }
  return full_parameters(model);
}

/// The recipe by hand, on every rank's data.
class Unsharded {
 public:
  explicit Unsharded(const Recipe& recipe) : recipe_(recipe), model_(make_chain()) {
    for (const auto& [name, parameter] : parameters_without_copies(*model_)) {
      const auto dtypes = resolve(recipe.precision, parameter.scalar_type(), true);
      names_.push_back(name);
      weights_.push_back(parameter);
      dtypes_.push_back(dtypes);
      main_.push_back(parameter.detach().to(dtypes.main, false, /*copy=*/true));
      const torch::NoGradGuard no_grad;
      weights_.back().set_data(main_.back().to(dtypes.model, false, /*copy=*/true));
    }
  }

  NamedTensors train(int64_t micro) {
    std::vector<at::Tensor> wide;  // AdamW works in fp32, whatever the main weight's dtype
    for (const auto& one : main_) wide.push_back(one.to(torch::kFloat, false, /*copy=*/true));
    torch::optim::AdamW optimizer(wide, torch::optim::AdamWOptions(kLr).weight_decay(0.01));
    const double scale = recipe_.scaled ? 256 : 1;
    for (int64_t step = 0; step < kSteps; ++step) {
      auto gradients = step_gradients(step, micro, scale);
      double squares = 0;
      for (auto& gradient : gradients) {
        gradient = gradient.to(torch::kFloat) / scale;
        squares += gradient.to(torch::kDouble).square().sum().item<double>();
      }
      const double norm = std::sqrt(squares);
      for (size_t i = 0; i < wide.size(); ++i) {
        wide[i].copy_(main_[i]);
        wide[i].mutable_grad() = norm > 10 ? gradients[i] * (10 / norm) : gradients[i];
      }
      optimizer.step();
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < wide.size(); ++i) {
        main_[i].copy_(wide[i]);
        weights_[i].copy_(wide[i]);
      }
    }
    NamedTensors result;
    for (size_t i = 0; i < names_.size(); ++i) result.emplace_back(names_[i], main_[i]);
    return result;
  }

 private:
  std::vector<at::Tensor> step_gradients(int64_t step, int64_t micro, double scale) {
    const int64_t ranks = test_world().size();
    std::vector<at::Tensor> sums;
    for (int64_t batch = 0; batch < micro; ++batch) {
      std::vector<at::Tensor> over_ranks(weights_.size());
      for (int64_t rank = 0; rank < ranks; ++rank) {
        pass(rank, step, batch, scale);
        for (size_t k = 0; k < weights_.size(); ++k) {
          auto mine =
              weights_[k].grad().defined() ? weights_[k].grad() : torch::zeros_like(weights_[k]);
          mine = mine.to(dtypes_[k].reduce).to(torch::kFloat);
          over_ranks[k] = over_ranks[k].defined() ? over_ranks[k] + mine : mine;
        }
      }
      for (size_t k = 0; k < weights_.size(); ++k) {
        const auto mean =
            over_ranks[k].to(dtypes_[k].reduce).to(torch::kFloat) / static_cast<double>(ranks);
        if (batch == 0) {
          sums.push_back(mean.to(dtypes_[k].gradient));
          continue;
        }
        sums[k] = (sums[k].to(torch::kFloat) + mean).to(dtypes_[k].gradient);
      }
    }
    return sums;
  }

  void pass(int64_t rank, int64_t step, int64_t batch, double scale) {
    for (auto& weight : weights_) weight.mutable_grad() = at::Tensor();
    auto input = chain_input(rank, step, batch);
    const auto device = test_world().device().type();
    const auto autocast = recipe_.precision.autocast;
    if (!autocast) input = input.to(dtypes_[0].model);
    if (autocast) {
      at::autocast::set_autocast_enabled(device, true);
      at::autocast::set_autocast_dtype(device, *autocast);
      at::autocast::set_autocast_cache_enabled(false);
    }
    auto loss = model_->forward(input);
    if (autocast) at::autocast::set_autocast_enabled(device, false);
    (loss * scale).backward();
  }

  Recipe recipe_;
  Chain model_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> weights_;
  std::vector<RoleDtypes> dtypes_;
  std::vector<at::Tensor> main_;
};

/// The largest difference of a tensor, norm over norm.
double distance(const NamedTensors& one, const NamedTensors& other) {
  double most = 0;
  for (const auto& [name, tensor] : one) {
    const auto found = std::find_if(
        other.begin(), other.end(), [&](const auto& item) { return item.first == name; });
    EXPECT_NE(found, other.end()) << name;
    const auto a = tensor.to(torch::kDouble), b = found->second.to(torch::kDouble);
    most = std::max(most, ((a - b).norm() / b.norm()).item<double>());
  }
  return most;
}

class PrecisionTest : public ::testing::TestWithParam<Recipe> {};

/// How far a sharded run may be from the unsharded one. Gradients of 16 bits that are added in fp32
/// lose nothing, so only the order of fp32 additions differs, by which a model weight of 16 bits is
/// now and then rounded the other way. Where sums are rounded to 16 bits,
/// strategies round at other points: before or after micro-batches or ranks are added. A rounded
/// main weight is off by its last digit.
double bound_of(const Recipe& recipe) {
  const auto dtypes = resolve(recipe.precision, torch::kFloat, true);
  if (dtypes.main != torch::kFloat) return 0x1p-7;
  if (dtypes.gradient != torch::kFloat || dtypes.reduce != torch::kFloat) return 1e-3;
  return dtypes.model == torch::kFloat ? 1e-6 : 1e-5;
}

TEST_P(PrecisionTest, TrainsLikeTheSameRecipeUnsharded) {
  for (const int64_t micro : {1, 3}) {
    const auto expected = Unsharded(GetParam()).train(micro);
    double most = 0;
    for (const auto& way : all_ways()) {
      SCOPED_TRACE(c10::str(way.name, ", ", micro, " micro-batches"));
      const double off = distance(train_sharded(GetParam(), way, micro), expected);
      EXPECT_LE(off, bound_of(GetParam()));
      most = std::max(most, off);
    }
    if (test_world().rank() != 0) continue;
    std::printf("%ld micro-batches: at most %.1e off\n", static_cast<long>(micro), most);
  }
}

TEST_P(PrecisionTest, StrategiesThatReduceAlikeAreBitEqual) {
  const auto train = [&](Strategy strategy) {
    std::vector<double> losses;
    auto weights = train_sharded(GetParam(), {to_text(strategy), Placement(strategy)}, 3, &losses);
    return std::pair(std::move(weights), std::move(losses));
  };
  const auto [one, one_losses] = train(Strategy::optim_grads);
  const auto [other, other_losses] = train(Strategy::optim_grads_params);
  EXPECT_EQ(one_losses, other_losses);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::equal(one[i].second, other[i].second)) << one[i].first;
  }
}

TEST_P(PrecisionTest, EveryRoleHasItsDtypeAndTheMainWeightKeepsEveryDigit) {
  auto plain = make_chain();
  auto model = make_chain();
  UnitOptions options{.mesh = mesh_for({})};
  options.precision = GetParam().precision;
  Twin::shard_in_order(model, options);
  const auto expected = resolve(GetParam().precision, torch::kFloat, true);
  for (const auto& parameter : model->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), expected.model);
  }
  for (const auto& [name, tensor] : full_parameters(model)) {
    EXPECT_EQ(tensor.scalar_type(), expected.main) << name;
    EXPECT_TRUE(torch::equal(tensor, plain->named_parameters()[name].to(expected.main))) << name;
  }
  model(chain_input(0, 0)).backward();
  for (const auto& piece : parameters(model)) {
    EXPECT_EQ(piece.scalar_type(), expected.main);
    EXPECT_EQ(piece.grad().scalar_type(), expected.gradient);
  }
  const auto& bytes = program(model).bytes();
  EXPECT_EQ(bytes.main_weights == 0, expected.main == expected.model)
      << "main and model weight share memory where their dtypes are equal";
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, PrecisionTest, ::testing::ValuesIn(recipes()), [](const auto& one) {
      return one.param.name;
    });

TEST(PrecisionRules, AnUnknownRecipeIsRefusedWithTheKnownOnes) {
  expect_error({"no precision recipe 'bf16'", "bf16_o1", "bf16_o2", "bf16_o3", "fp16", "fp32"}, [] {
    Precision::recipe("bf16");
  });
}

TEST(PrecisionRules, DtypesThatAreNotSetFollowTheOthers) {
  EXPECT_EQ(
      resolve({}, torch::kFloat, true),
      (RoleDtypes{torch::kFloat, torch::kFloat, torch::kFloat, torch::kFloat}));
  EXPECT_EQ(
      resolve({.compute = torch::kBFloat16}, torch::kFloat, true),
      (RoleDtypes{torch::kBFloat16, torch::kFloat, torch::kFloat, torch::kFloat}));
  EXPECT_EQ(
      resolve({.main = torch::kFloat, .reduce = torch::kBFloat16}, torch::kBFloat16, true),
      (RoleDtypes{torch::kBFloat16, torch::kFloat, torch::kFloat, torch::kBFloat16}));
  EXPECT_EQ(
      resolve({.compute = torch::kBFloat16, .main = torch::kFloat}, torch::kFloat, false),
      (RoleDtypes{torch::kBFloat16, torch::kBFloat16, torch::kBFloat16, torch::kBFloat16}));
  EXPECT_EQ(
      resolve(Precision::recipe("bf16_o2"), torch::kLong, false),
      (RoleDtypes{torch::kLong, torch::kLong, torch::kLong, torch::kLong}));
}

TEST(PrecisionRules, SomeParametersMayHaveAnotherPrecision) {
  auto model = make_chain();
  UnitOptions options{.mesh = mesh_for({})};
  options.precision = Precision::recipe("bf16_o2");
  options.rules = {{.match = "spare", .precision = Precision::recipe("fp32")}};
  Twin::shard_in_order(model, options);
  EXPECT_EQ(model->links[0]->spare.scalar_type(), torch::kFloat);
  EXPECT_EQ(model->links[0]->first->weight.scalar_type(), torch::kBFloat16);
  AdamW optimizer(model);
  model(chain_input(0, 0)).backward();
  optimizer.step();
  EXPECT_EQ(optimizer.updates(), 1);
}

TEST(PrecisionRules, ADtypeThatCantBeTrainedIsRefusedWithItsRole) {
  auto model = make_chain();
  UnitOptions options{.mesh = mesh_for({})};
  options.precision.reduce = torch::kInt;
  expect_error({"[shard] parameter 'spare' is trainable", "reduce dtype is Int"}, [&] {
    fully_shard(model->links[0], options);
  });
}

TEST(PrecisionRules, TheAutocastOfAUnitEndsWithItAlsoWhenItThrows) {
  auto model = make_chain();
  UnitOptions options{.mesh = mesh_for({})};
  options.precision = Precision::recipe("bf16_o1");
  Twin::shard_in_order(model, options);
  const auto device = test_world().device().type();
  model->route = [&](ChainImpl& chain, const at::Tensor& x) {
    EXPECT_TRUE(at::autocast::is_autocast_enabled(device));
    return chain.links[0](x);
  };
  model(chain_input(0, 0));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(device));
  model->route = [](ChainImpl&, const at::Tensor&) -> at::Tensor {
    throw std::logic_error("a mistake");
  };
  expect_error({"a mistake"}, [&] { model(chain_input(0, 0)); });
  EXPECT_FALSE(at::autocast::is_autocast_enabled(device));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

}  // namespace
}  // namespace sherd::testing
