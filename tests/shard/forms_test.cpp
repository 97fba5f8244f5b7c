// SPDX-License-Identifier: Apache-2.0
// The forms that units and models may take: outputs, nesting, containers, recompute, prefetch.
#include "sherd/shard/wrapper.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>

#include "shard/twin.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

/// With the same values: one to shard, one to compare with.
template <class Model>
std::pair<Model, Model> two_alike() {
  const auto make = [] {
    torch::manual_seed(1);
    Model model;
    to_device(*model);
    return model;
  };
  auto model = make();
  return {std::move(model), make()};
}

struct Pieces {
  at::Tensor first;
  std::vector<at::Tensor> rest;
};
template <class Visitor>
void visit_tensors(const Pieces& value, Visitor visitor) {
  visitor(value.first);
  visitor(value.rest);
}

/// Returns the same tensors in many forms.
struct ManyFormsImpl : torch::nn::Module {
  ManyFormsImpl() { weight = register_parameter("weight", torch::randn({6, 6}) * 0.3); }
  std::tuple<at::Tensor, std::optional<at::Tensor>> forward(const at::Tensor& x, int) {
    return {torch::matmul(x, weight), std::nullopt};
  }
  Pieces forward(const at::Tensor& x) {
    return {torch::matmul(x, weight), {x * weight.sum(), torch::tanh(x)}};
  }
  std::pair<std::vector<at::Tensor>, int> forward(const std::vector<at::Tensor>& xs) {
    return {{torch::matmul(xs[0], weight), xs[1]}, 3};
  }
  at::Tensor weight;
};
SHERD_MODULE(ManyForms);

struct FormsModelImpl : torch::nn::Module {
  FormsModelImpl() { unit = register_module("unit", ManyForms()); }
  at::Tensor forward(const at::Tensor& x) {
    auto [first, none] = unit(x, 1);
    EXPECT_FALSE(none.has_value());
    auto pieces = unit(first);
    auto [list, number] = unit(std::vector<at::Tensor>{pieces.rest[0], pieces.first});
    EXPECT_EQ(number, 3);
    return (list[0] + list[1]).square().mean();
  }
  ManyForms unit{nullptr};
};
SHERD_MODULE(FormsModel);

/// Trains both models for some steps on every rank's data and compares the weights.
template <class Holder>
void expect_same_training(
    Holder& model,
    Holder& reference,
    const std::function<at::Tensor(int64_t rank, int64_t step)>& input,
    int64_t steps = 3) {
  const auto& world = test_world();
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
  auto other = make_optimizer(Optimizer::sgd, reference->parameters());
  for (int64_t step = 0; step < steps; ++step) {
    for (auto& parameter : reference->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      (reference(input(rank, step)) / world.size()).backward();
    }
    model(input(world.rank(), step)).backward();
    sherd::step(model, *optimizer);
    other->step();
  }
  expect_weights(full_parameters(model), *reference, 1e-5);
}

at::Tensor six(int64_t rank, int64_t step) {
  return random_input(step, 0, rank, {3, 6}).to(test_world().device());
}

TEST(FormsTest, OutputsMayBeTuplesVectorsOptionalsAndStructs) {
  auto [model, reference] = two_alike<FormsModel>();
  const UnitOptions options{.mesh = mesh_for({})};
  fully_shard(model->unit, options);
  fully_shard(model, options);
  expect_same_training(model, reference, six);
}

struct StackedImpl : torch::nn::Module {
  StackedImpl() {
    layers = register_module("layers", torch::nn::Sequential(Link(6), torch::nn::Tanh(), Link(6)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x).square().mean(); }
  torch::nn::Sequential layers{nullptr};
};
SHERD_MODULE(Stacked);

TEST(FormsTest, UnitsInsideASequentialAreCalledThroughTheirBoundary) {
  auto [model, reference] = two_alike<Stacked>();
  const UnitOptions options{.mesh = mesh_for({})};
  fully_shard(model->layers[0], options);
  fully_shard(model->layers[2], options);
  fully_shard(model, options);
  const auto before = program(model).fingerprint();
  for (auto& parameter : reference->parameters())
    parameter.mutable_grad() = torch::zeros_like(parameter);
  const auto& world = test_world();
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    (reference(six(rank, 0)) / world.size()).backward();
  }
  model(six(world.rank(), 0)).backward();
  sherd::step(model, *optimizer);
  make_optimizer(Optimizer::sgd, reference->parameters())->step();
  expect_weights(full_parameters(model), *reference, 1e-5);
  EXPECT_EQ(program(model).fingerprint(), before);  // both were seen where they were expected
}

/// A unit that calls units, with parameters of its own before, between and after them.
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    a = register_module("a", Link(6));
    b = register_module("b", Link(6));
    weight = register_parameter("weight", torch::randn({6, 6}) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) {
    auto y = a(torch::matmul(x, weight));
    y = b(torch::matmul(torch::tanh(y), weight));
    return torch::matmul(y, weight.t());
  }
  Link a{nullptr}, b{nullptr};
  at::Tensor weight;
};
SHERD_MODULE(Outer);

struct NestedImpl : torch::nn::Module {
  NestedImpl() {
    first = register_module("first", Outer());
    second = register_module("second", Outer());
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)).square().mean(); }
  Outer first{nullptr}, second{nullptr};
};
SHERD_MODULE(Nested);

class NestedTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(NestedTest, UnitsMayContainUnits) {
  auto [model, reference] = two_alike<Nested>();
  const auto options = options_for(GetParam());
  for (auto* outer : {&model->first, &model->second}) {
    fully_shard((*outer)->a, options);
    fully_shard((*outer)->b, options);
    fully_shard(*outer, options);
  }
  fully_shard(model, options);
  expect_same_training(model, reference, six);
}

INSTANTIATE_TEST_SUITE_P(Ways, NestedTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

/// Two units with one tensor: it belongs to the unit around both.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    a = register_module("a", ManyForms());
    b = register_module("b", ManyForms());
    b->weight = b->register_parameter("tied", a->weight);
    link = register_module("link", Link(6));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [y, none] = a(x, 1);
    const auto [z, also_none] = b(link(y), 1);
    return z.square().mean();
  }
  ManyForms a{nullptr}, b{nullptr};
  Link link{nullptr};
};
SHERD_MODULE(Tied);

TEST(FormsTest, AParameterOfTwoUnitsBelongsToTheUnitAroundBoth) {
  auto [model, reference] = two_alike<Tied>();
  model->b->weight = model->b->named_parameters()["tied"];
  const UnitOptions options{.mesh = mesh_for({})};
  for (const auto& module : {model->a.ptr(), model->b.ptr()}) {
    fully_shard(module, options);
  }
  fully_shard(model->link, options);
  fully_shard(model, options);
  const auto& world = test_world();
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
  std::vector<at::Tensor> trained;
  for (const auto& [name, value] : parameters_without_copies(*reference)) trained.push_back(value);
  for (auto& parameter : trained) parameter.mutable_grad() = torch::zeros_like(parameter);
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    (reference(six(rank, 0)) / world.size()).backward();
  }
  model(six(world.rank(), 0)).backward();
  sherd::step(model, *optimizer);
  make_optimizer(Optimizer::sgd, trained)->step();
  expect_weights(full_parameters(model), *reference, 1e-5);
}

// ---- the wrapper --------------------------------------------------------------------------------

std::vector<std::string> unit_names(const torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& unit : program(model).units()) names.push_back(unit.name);
  return names;
}

/// Trains the wrapped model and a plain one and compares outputs, gradients and weights.
template <class Holder>
void expect_wrapped_trains_like(
    FullyShardedDataParallel<Holder>& model,
    Holder& reference,
    const std::function<at::Tensor(int64_t rank, int64_t step)>& input) {
  const auto& world = test_world();
  torch::optim::SGD optimizer(parameters(model.module()), torch::optim::SGDOptions(0.1));
  torch::optim::SGD other(reference->parameters(), torch::optim::SGDOptions(0.1));
  for (int64_t step = 0; step < 3; ++step) {
    for (auto& parameter : reference->parameters()) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    for (int64_t rank = 0; rank < world.size(); ++rank) {
      (reference(input(rank, step)) / world.size()).backward();
    }
    const double expected = reference(input(world.rank(), step)).template item<double>();
    const auto loss = model(input(world.rank(), step));
    expect_loss(loss.template item<double>(), expected);
    loss.backward();
    const auto gradients = reference->named_parameters();
    const auto found = norms(model.module());
    EXPECT_EQ(found.size(), gradients.size());
    for (const auto& one : found) {
      const double norm = gradients[one.parameter].grad().norm().template item<double>();
      EXPECT_NEAR(one.gradient, norm, 1e-5 * norm) << one.parameter << ", step " << step;
    }
    sherd::step(model.module(), optimizer);
    other.step();
    // Without momentum an update is the gradient itself, element by element.
    expect_weights(full_parameters(model.module()), *reference, 1e-6);
  }
}

TEST(FormsTest, TheWrapperShardsEveryModuleOfTheGivenTypes) {
  torch::manual_seed(3);
  Chain plain(3);
  torch::manual_seed(3);
  Chain reference(3);
  to_device(*plain);
  to_device(*reference);
  FullyShardedDataParallel model(plain, UnitTypes<Link>{}, {.mesh = mesh_for({})});
  EXPECT_EQ(
      unit_names(*model.module()), (std::vector<std::string>{"link0", "link1", "link2", "Chain"}));
  EXPECT_EQ(model->links.size(), 3u);
  expect_wrapped_trains_like(
      model, reference, [](int64_t rank, int64_t step) { return chain_input(rank, step); });
}

TEST(FormsTest, TheWrapperShardsInnerModulesBeforeTheModulesAroundThem) {
  auto [plain, reference] = two_alike<Nested>();
  FullyShardedDataParallel model(
      plain, UnitTypes<Outer, Link>{},
      {.mesh = mesh_for({}), .placement = Placement(Strategy::optim_grads)}, {.prefetch_depth = 3});
  EXPECT_EQ(program(model.module()).options().prefetch_depth, 3);
  EXPECT_EQ(
      unit_names(*model.module()),
      (std::vector<std::string>{
          "first.a", "first.b", "first", "second.a", "second.b", "second", "Nested"}));
  for (const auto& unit : program(model.module()).units()) {
    if (unit.groups.empty()) continue;
    EXPECT_EQ(unit.groups[0].placement.to_text(), Placement(Strategy::optim_grads).to_text());
  }
  expect_wrapped_trains_like(model, reference, six);
}

struct BareImpl : torch::nn::Module {
  BareImpl() {
    linear = register_module("linear", sherd::Linear(torch::nn::LinearOptions(6, 3).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x).square().sum(); }
  sherd::Linear linear{nullptr};
};
SHERD_MODULE(Bare);

TEST(FormsTest, ALinearWithoutBias) {
  auto [model, reference] = two_alike<Bare>();
  fully_shard(model, {.mesh = mesh_for({})});
  const auto input = [](int64_t rank) {
    return random_input(0, 0, rank, {4, 6}).to(test_world().device());
  };
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
  model(input(test_world().rank())).backward();
  step(model, *optimizer);
  for (int64_t rank = 0; rank < test_world().size(); ++rank) {
    const auto loss = torch::linear(input(rank), reference->linear->weight).square().sum();
    (loss / test_world().size()).backward();
  }
  make_optimizer(Optimizer::sgd, reference->parameters())->step();
  expect_weights(full_parameters(model), *reference, 1e-5);
}

}  // namespace
}  // namespace sherd::testing
