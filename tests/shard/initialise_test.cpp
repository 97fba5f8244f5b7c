// SPDX-License-Identifier: Apache-2.0
// Models that are built without memory and get their values when they are sharded.
#include "sherd/shard/initialise.h"

#include "kernels/keyed_fill.h"
#include "shard/counting_allocator.h"
#include "shard/failure_fixture.h"
#include "sherd/optim/adamw.h"

namespace sherd::testing {
namespace {

struct NormImpl : torch::nn::Module {
  explicit NormImpl(int64_t dim) {
    weight = register_parameter("weight", torch::empty({dim}));
    table = register_buffer("table", torch::empty({4}));
    reset_parameters();
  }
  void reset_parameters() {
    const torch::NoGradGuard no_grad;
    weight.uniform_(0.5, 1.5);
    table.copy_(torch::arange(4).to(table));
  }
  at::Tensor forward(const at::Tensor& x) { return x * weight + table[1]; }
  at::Tensor weight, table;
};
SHERD_MODULE(Norm);

struct BornBlockImpl : torch::nn::Module {
  explicit BornBlockImpl(int64_t dim) {
    up = register_module("up", torch::nn::Linear(dim, 11));
    down = register_module("down", torch::nn::Linear(11, dim));
    norm = register_module("norm", Norm(dim));
    reset_parameters();
  }
  void reset_parameters() {
    const torch::NoGradGuard no_grad;
    down->bias.fill_(0.125);  // after what the linear itself does
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(norm(x)))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
  Norm norm{nullptr};
};
SHERD_MODULE(BornBlock);

/// A linear whose weight is another module's.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const at::Tensor& shared) {
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", torch::full({9}, 0.5f));
  }
  void reset_parameters() {
    const torch::NoGradGuard no_grad;
    weight.fill_(77);  // as it would be, were it not the table's
    bias.fill_(0.5);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::matmul(x, weight.t()) + bias; }
  at::Tensor weight, bias;
};
SHERD_MODULE(TiedHead);

struct BornImpl : torch::nn::Module {
  explicit BornImpl(int64_t dim = 6) {
    table = register_module("table", torch::nn::Embedding(9, dim));
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), BornBlock(dim)));
    }
    head = register_module("head", TiedHead(table->weight));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = table(tokens);
    for (auto& block : blocks) x = block(x);
    return head(x).square().mean();
  }
  torch::nn::Embedding table{nullptr};
  std::vector<BornBlock> blocks;
  TiedHead head{nullptr};
};
SHERD_MODULE(Born);

Born make_on_meta(int64_t dim = 6) {
  const MetaDevice meta;
  return Born(dim);
}

Born make_sharded(const UnitOptions& options, const InitialiseOptions& initial = {}) {
  auto model = make_on_meta();
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  initialise(model, initial);
  return model;
}

/// What one rank alone has, unsharded.
NamedTensors made_alone(const InitialiseOptions& initial, const Precision& precision = {}) {
  const auto world = World::emulated({.rank = 0, .size = 1, .device = test_world().device()});
  const UnitOptions options{
      .mesh = Mesh(world, {{"dp", 1}}),
      .placement = Placement(Strategy::no_shard),
      .precision = precision};
  return full_parameters(make_sharded(options, initial));
}

void expect_same_bytes(const NamedTensors& one, const NamedTensors& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].first, other[i].first);
    EXPECT_TRUE(torch::equal(one[i].second, other[i].second)) << one[i].first;
  }
}

at::Tensor tensor_called(const NamedTensors& all, const std::string& name) {
  for (const auto& [known, tensor] : all) {
    if (known == name) return tensor;
  }
  ADD_FAILURE() << "there is no '" << name << "'";
  return {};
}

std::optional<InitialValues> by_key(const std::string& name, at::IntArrayRef shape) {
  if (name.ends_with("bias")) return InitialValues::constant(0.25);
  if (name.ends_with("norm.weight")) return InitialValues::uniform(-1, 3);
  return InitialValues::normal(0, 1 / std::sqrt(static_cast<double>(shape.back())));
}

at::Tensor tokens_of(int64_t rank) {
  return (torch::arange(12) * (rank + 1) % 9).view({3, 4}).to(test_world().device());
}

class InitialiseTest : public ::testing::TestWithParam<ShardingCase> {
 protected:
  UnitOptions options() const {
    return {.mesh = mesh_for(GetParam()), .placement = GetParam().placement};
  }
};

TEST_P(InitialiseTest, ParametersAreTheSameBytesForAnyNumberOfRanks) {
  for (const uint64_t seed : {0u, 7u}) {
    const InitialiseOptions initial{.seed = seed};
    expect_same_bytes(full_parameters(make_sharded(options(), initial)), made_alone(initial));
  }
  EXPECT_FALSE(torch::equal(made_alone({.seed = 0})[0].second, made_alone({.seed = 7})[0].second));
}

TEST_P(InitialiseTest, ValuesDrawnByKeyAreTheSameBytesForAnyNumberOfRanks) {
  const InitialiseOptions initial{.seed = 3, .values = by_key};
  const auto all = full_parameters(make_sharded(options(), initial));
  expect_same_bytes(all, made_alone(initial));
  EXPECT_TRUE((tensor_called(all, "block1.up.bias") == 0.25).all().item<bool>());
  EXPECT_FALSE(
      torch::equal(tensor_called(all, "block0.up.weight"), tensor_called(all, "block1.up.weight")));
}

TEST_P(InitialiseTest, MainAndModelWeightsAgreeWhereTheirDtypesDiffer) {
  auto narrow = options();
  narrow.precision = Precision::recipe("bf16_o2");
  for (const auto& initial :
       {InitialiseOptions{.seed = 5}, InitialiseOptions{.seed = 5, .values = by_key}}) {
    auto model = make_sharded(narrow, initial);
    expect_same_bytes(full_parameters(model), made_alone(initial, narrow.precision));
    const auto before = model(tokens_of(0)).item<float>();
    publish(model);  // main to model weight once more: nothing changes
    EXPECT_EQ(model(tokens_of(0)).item<float>(), before);
  }
}

TEST_P(InitialiseTest, ModulesAreResetAsTheirConstructorsRunAndTiedWeightsStayTheFirstOnes) {
  auto model = make_sharded(options());
  const auto all = full_parameters(model);
  EXPECT_TRUE((tensor_called(all, "block2.down.bias") == 0.125).all().item<bool>());
  const auto table = tensor_called(all, "table.weight");
  EXPECT_LT(table.abs().max().item<float>(), 10) << "the head's 77 must not reach it";
  EXPECT_TRUE((tensor_called(all, "head.bias") == 0.5).all().item<bool>());
  EXPECT_TRUE(
      torch::equal(model->blocks[1]->norm->table.cpu(), torch::arange(4).to(torch::kFloat)));
}

TEST_P(InitialiseTest, AllRanksTakeTheBuffersOfTheFirst) {
  Born model;
  to_device(*model);
  const int64_t rank = test_world().rank();
  model->register_buffer("count", torch::full({}, 5 - rank, torch::kLong));
  model->register_buffer("none", torch::zeros({0}));
  model->blocks[1]->norm->register_buffer("mask", torch::full({3}, rank == 0));
  // Not contiguous, and not on the device that the ranks talk over where that is another one.
  model->blocks[1]->register_buffer(
      "slanted", torch::full({2, 3}, 1.5 + static_cast<double>(rank)).t());
  for (auto& block : model->blocks) {
    const torch::NoGradGuard no_grad;
    block->norm->table.fill_(7 + rank);
    fully_shard(block, options());
  }
  fully_shard(model, options());
  const auto buffers = model->named_buffers();
  EXPECT_EQ(buffers["count"].item<int64_t>(), 5);
  EXPECT_TRUE(buffers["block1.norm.mask"].all().item<bool>());
  EXPECT_TRUE((buffers["block1.slanted"] == 1.5).all().item<bool>());
  for (auto& block : model->blocks) {
    EXPECT_TRUE((block->norm->table == 7).all().item<bool>());
  }
}

TEST_P(InitialiseTest, AModelBuiltWithoutMemoryTrainsLikeOneBuiltWithIt) {
  auto model = make_sharded(options(), {.seed = 2});
  Born reference;
  to_device(*reference);
  {
    const torch::NoGradGuard no_grad;
    const auto all = full_parameters(model);
    for (const auto& [name, parameter] : parameters_without_copies(*reference)) {
      at::Tensor(parameter).copy_(tensor_called(all, name));
    }
  }
  AdamW optimizer(model, {.lr = 1e-2});
  torch::optim::AdamW torchs(
      [&] {
        std::vector<at::Tensor> result;
        for (const auto& [name, one] : parameters_without_copies(*reference)) result.push_back(one);
        return result;
      }(),
      torch::optim::AdamWOptions(1e-2).weight_decay(0.01));
  const int64_t ranks = test_world().size();
  for (int64_t step = 0; step < 3; ++step) {
    model(tokens_of(test_world().rank() + step)).backward();
    optimizer.step();
    torchs.zero_grad();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      (reference->forward(tokens_of(rank + step)) / ranks).backward();
    }
    torchs.step();
  }
  expect_weights(full_parameters(model), *reference, 2e-3);
}

TEST_P(InitialiseTest, TheProgramAndTheOptimizerMayBeThereBeforeTheValues) {
  auto model = make_on_meta();
  for (auto& block : model->blocks) fully_shard(block, options());
  fully_shard(model, options());
  AdamW optimizer(model, {.lr = 1e-2});
  initialise(model, {.seed = 2});
  auto other = make_sharded(options(), {.seed = 2});
  AdamW others(other, {.lr = 1e-2});
  for (auto* one : {&model, &other}) (*one)(tokens_of(test_world().rank())).backward();
  optimizer.step();
  others.step();
  expect_same_bytes(full_parameters(model), full_parameters(other));
}

TEST_P(InitialiseTest, RanksBuiltWithDifferentValuesTakeThoseOfTheFirst) {
  const auto make = [](int64_t seed) {
    torch::manual_seed(static_cast<uint64_t>(seed));
    Born model;
    to_device(*model);
    return model;
  };
  auto model = make(40 + test_world().rank());
  for (auto& block : model->blocks) fully_shard(block, options());
  fully_shard(model, options());
  auto first = make(40);
  for (const auto& [name, tensor] : full_parameters(model)) {
    EXPECT_TRUE(torch::equal(tensor, first->named_parameters()[name])) << name;
  }
}

TEST_P(InitialiseTest, BuildingTakesTheShardsAndAtMostTwoUnits) {
  if (test_world().device().is_cuda()) return;
  auto model = make_on_meta(/*dim=*/20'000);  // against which a generator's state is small
  const auto before = restart_cpu_peak().live;
  for (auto& block : model->blocks) fully_shard(block, options());
  fully_shard(model, options());
  initialise(model);
  const int64_t peak = cpu_memory().peak - before;
  const int64_t rest = cpu_memory().live - before;
  int64_t largest = 0;
  for (const auto& unit : program(model).units()) {
    int64_t bytes = 0;
    for (const auto& group : unit.groups) bytes += group.elements * group.bytes.model;
    largest = std::max(largest, bytes);
  }
  EXPECT_LE(peak, rest + 2 * largest);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, InitialiseTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
      return way.param.name;
    });

struct ForgetfulImpl : torch::nn::Module {
  ForgetfulImpl() {
    weight = register_parameter("weight", torch::empty({7}));
    rest = register_parameter("rest", torch::empty({5}));
  }
  void reset_parameters() {
    const torch::NoGradGuard no_grad;
    weight.fill_(1);
    if (remember)
      rest.fill_(2);
    else
      rest.narrow(0, 0, 4).fill_(2);
  }
  at::Tensor forward(const at::Tensor& x) { return (x * weight).sum() + rest.sum(); }
  bool remember = false;
  at::Tensor weight, rest;
};
SHERD_MODULE(Forgetful);

struct PlainImpl : torch::nn::Module {
  PlainImpl() { weight = register_parameter("weight", torch::empty({7})); }
  at::Tensor forward(const at::Tensor& x) { return (x * weight).sum(); }
  at::Tensor weight;
};
SHERD_MODULE(Plain);

TEST(UninitialisedTest, ParametersLeftUninitialisedAfterMetaInitialisationAreNamed) {
  auto model = [] {
    const MetaDevice meta;
    return Forgetful();
  }();
  const auto x = torch::ones({7}).to(test_world().device());
  fully_shard(model, {.mesh = mesh_for({})});
  expect_error({"[shard] parameter 'weight'", "no values", "sherd::initialise"}, [&] { model(x); });
  expect_error({"'weight'", "no values"}, [&] { full_parameters(model); });
  expect_error({"'weight'", "no values"}, [&] { edit_parameters(model, [] {}); });
  expect_error({"[shard] 'rest' still has elements without a value"}, [&] { initialise(model); });
  expect_error({"[shard] parameter 'weight'", "no values"}, [&] { model(x); });
  model->remember = true;
  initialise(model);
  EXPECT_EQ(model(x).item<float>(), 7 + 10);
}

struct UnreadyImpl : torch::nn::Module {
  UnreadyImpl() { weight = register_parameter("weight", torch::empty({7})); }
  void reset_parameters() {
    TORCH_CHECK(ready, "not ready");
    const torch::NoGradGuard no_grad;
    weight.fill_(1);
  }
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  bool ready = false;
  at::Tensor weight;
};
SHERD_MODULE(Unready);

struct TableImpl : torch::nn::Module {
  TableImpl() { table = register_buffer("table", torch::empty({7})); }
  void reset_parameters() { table.fill_(2); }
  at::Tensor forward(const at::Tensor& x) { return x * table; }
  at::Tensor table;
};
SHERD_MODULE(Table);

struct UnreadyModelImpl : torch::nn::Module {
  UnreadyModelImpl() {
    unready = register_module("unready", Unready());
    table = register_module("table", Table());
  }
  at::Tensor forward(const at::Tensor& x) { return table(unready(x)).sum(); }
  Unready unready{nullptr};
  Table table{nullptr};
};
SHERD_MODULE(UnreadyModel);

TEST(UninitialisedTest, BuffersThatAnErrorLeftWithoutValuesGetThemLater) {
  auto model = [] {
    const MetaDevice meta;
    return UnreadyModel();
  }();
  fully_shard(model, {.mesh = mesh_for({})});
  expect_error({"not ready"}, [&] { initialise(model); });
  model->unready->ready = true;
  initialise(model);
  EXPECT_EQ(model(torch::ones({7}).to(test_world().device())).item<float>(), 14);
}

TEST(UninitialisedTest, AModuleWithoutResetParametersIsNamedWithTheRemedies) {
  auto model = [] {
    const MetaDevice meta;
    return Plain();
  }();
  fully_shard(model, {.mesh = mesh_for({})});
  expect_error(
      {"[shard] 'weight' has no values", "PlainImpl", "reset_parameters", "options.values"},
      [&] { initialise(model); });
  initialise(model, {.values = [](const std::string&, at::IntArrayRef) {
               return std::optional(InitialValues::constant(3));
             }});
  EXPECT_EQ(model(torch::ones({7}).to(test_world().device())).item<float>(), 21);
}

TEST(UninitialisedTest, BuffersOfOtherShapesAreToldApart) {
  const int64_t rank = test_world().rank();
  if (test_world().size() == 1) return;
  Born model;
  to_device(*model);
  model->blocks[0]->register_buffer("table", torch::zeros({rank == 0 ? 2 : 3}));
  expect_error({"[shard.agree]", "table", "[2]", "[3]"}, [&] {
    fully_shard(model->blocks[0], {.mesh = mesh_for({})});
  });
}

TEST(UninitialisedTest, ValuesDrawnByKeyHaveTheirMoments) {
  const int64_t count = 200'000;
  for (const auto& values :
       {KeyedValues{KeyedValues::Kind::normal, 1.5, 0.5},
        KeyedValues{KeyedValues::Kind::uniform, -1, 3}}) {
    auto drawn = torch::empty({count}, torch::kDouble);
    fill_keyed({drawn.mutable_data_ptr(), torch::kDouble, 0, count, 99, values}, c10::kCPU);
    const bool normal = values.kind == KeyedValues::Kind::normal;
    const double mean = normal ? 1.5 : 1, deviation = normal ? 0.5 : 4 / std::sqrt(12.0);
    EXPECT_NEAR(drawn.mean().item<double>(), mean, 5 * deviation / std::sqrt(count));
    EXPECT_NEAR(drawn.std().item<double>(), deviation, 0.01 * deviation);
    const auto centred = (drawn - mean) / deviation;
    EXPECT_NEAR(centred.pow(4).mean().item<double>(), normal ? 3 : 1.8, 0.1);
    const auto neighbours = centred.narrow(0, 1, count - 1) * centred.narrow(0, 0, count - 1);
    EXPECT_NEAR(neighbours.mean().item<double>(), 0, 5 / std::sqrt(count)) << "not correlated";
  }
}

}  // namespace
}  // namespace sherd::testing
