// SPDX-License-Identifier: Apache-2.0
// The sharded model against the same model, unsharded, trained on the data of all ranks.
#include "shard/parity.h"

#include <map>

#include "shard/combinations.h"
#include "shard/granules.h"

namespace sherd::testing {
namespace {

constexpr int64_t kSteps = 10;

/// Torture with experts, over one data-parallel axis or with an outer one.
enum class Kind { perceptron, transformer, torture, torture_outer };
const std::vector<std::string> kKinds{"Perceptron", "Transformer", "Torture", "TortureOuter"};

struct Case {
  Kind kind{};
  ShardingCase way;
  int64_t micro_batches = 1;
  bool recompute = false;
  Optimizer optimizer = Optimizer::sgd;
  GranuleCase granules;

  std::string name() const {
    return c10::str(
        kKinds[static_cast<size_t>(kind)], "_", way.name, "_", micro_batches, "_",
        recompute ? "recompute_" : "", optimizer == Optimizer::sgd ? "SGD" : "AdamW", "_",
        granules.name);
  }
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name(); }
};

/// Kinds, ways, micro-batches, recompute, optimizers, granules.
Factors factors() {
  return {kKinds.size(), all_ways().size(), 2, 2, 2, all_granules().size()};
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto& levels : combinations(factors())) {
    result.push_back(
        {static_cast<Kind>(levels[0]), all_ways()[levels[1]], levels[2] == 0 ? 1 : 3,
         levels[3] == 1, levels[4] == 0 ? Optimizer::sgd : Optimizer::adamw,
         all_granules()[levels[5]]});
  }
  return result;
}

double tolerance(Optimizer optimizer) {
  return optimizer == Optimizer::sgd ? 1e-5 : 2e-3;
}

Batch perceptron_batch(int64_t step, int64_t micro_batch, int64_t rank) {
  const auto device = test_world().device();
  return {
      random_input(step, micro_batch, rank, {4, 7}).to(device),
      random_input(step, micro_batch + 50, rank, {4, 3}).to(device)};
}

Batch transformer_batch(int64_t step, int64_t micro_batch, int64_t rank) {
  const auto noise = random_input(step, micro_batch, rank, {2, 7});
  const auto tokens = (noise.abs() * 1000).to(torch::kLong).remainder(23).to(test_world().device());
  return {tokens.narrow(1, 0, 6), tokens.narrow(1, 1, 6)};
}

Batch batch_of(Kind kind, int64_t step, int64_t micro_batch, int64_t rank) {
  return kind == Kind::transformer ? transformer_batch(step, micro_batch, rank)
                                   : perceptron_batch(step, micro_batch, rank);
}

/// Each rank has its own expert wherever the number of ranks is even and leaves enough of them for
/// the other axes: ranks r and r + 1 have different ones.
Mesh expert_mesh(Kind kind) {
  const int64_t size = test_world().size();
  if (kind == Kind::torture) {
    const int64_t experts = size % 2 == 0 ? 2 : 1;
    return shared_mesh({{"dp", size / experts}, {"ep", experts}});
  }
  const int64_t experts = size % 4 == 0 ? 2 : 1;
  const int64_t inner = size % 8 == 0 ? 2 : 1;
  return shared_mesh({{"dp_outer", size / experts / inner}, {"dp", inner}, {"ep", experts}});
}

Placement expert_placement(const Case& one) {
  using enum Strategy;
  if (one.kind == Kind::torture_outer && one.way.two_axes) return one.way.placement;
  const bool gathered = one.way.placement.spreads(Role::parameter).inner == Spread::shard;
  const auto inner = gathered ? optim_grads_params : optim_grads;
  if (one.kind == Kind::torture) return Placement(inner);
  return Placement(inner, gathered ? optim : no_shard);
}

/// The name of this rank's expert among those of all ranks.
std::string with_expert(std::string name, int64_t expert) {
  if (const auto at = name.find("expert0"); at != std::string::npos) {
    name.replace(at, 7, "expert" + std::to_string(expert));
  }
  return name;
}

// ---- the reference ------------------------------------------------------------------------------

/// What training unsharded gives.
struct Reference {
  at::Tensor losses;  ///< by step, micro-batch and rank
  at::Tensor norms;   ///< of the gradient, by step
  NamedTensors weights;
};

struct ReferenceKey {
  Kind kind{};
  int64_t micro_batches = 1;
  Optimizer optimizer = Optimizer::sgd;
  friend auto operator<=>(const ReferenceKey&, const ReferenceKey&) = default;
};

/// `prepare` is called before a forward, with the rank whose data it gets.
template <class Holder>
void train(
    Holder& model,
    const ReferenceKey& key,
    Reference& result,
    const std::function<void(int64_t rank)>& prepare) {
  const int64_t ranks = test_world().size();
  std::vector<at::Tensor> trained;
  for (const auto& [name, parameter] : parameters_without_copies(*model)) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  auto optimizer = make_optimizer(key.optimizer, trained);
  for (int64_t step = 0; step < kSteps; ++step) {
    // A parameter that no rank used still has a gradient, of zero.
    for (auto& parameter : trained) parameter.mutable_grad() = torch::zeros_like(parameter);
    for (int64_t micro_batch = 0; micro_batch < key.micro_batches; ++micro_batch) {
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto batch = batch_of(key.kind, step, micro_batch, rank);
        prepare(rank);
        auto loss = model(batch.input, batch.target);
        result.losses[step][micro_batch][rank].copy_(loss.detach());
        (loss / ranks).backward();
      }
    }
    auto squares = torch::zeros({}, torch::kDouble);
    for (const auto& parameter : trained) {
      squares += parameter.grad().to(torch::kDouble).square().sum().cpu();
    }
    result.norms[step].copy_(squares.sqrt());
    optimizer->step();
  }
}

/// One rank trains it, and all get it: collective.
template <class Holder>
Reference make_reference(
    Holder model,
    const ReferenceKey& key,
    int64_t trainer,
    const std::function<void(int64_t rank)>& prepare = [](int64_t) {}) {
  const auto& world = test_world();
  to_device(*model);
  const auto numbers = torch::TensorOptions(torch::kDouble).device(world.device());
  Reference result{
      torch::zeros({kSteps, key.micro_batches, world.size()}, numbers),
      torch::zeros({kSteps}, numbers),
      {}};
  if (world.rank() == trainer) train(model, key, result, prepare);
  const auto share = [&](const at::Tensor& tensor) {
    if (tensor.numel() > 0) world.communicator().broadcast(tensor, trainer).wait();
  };
  share(result.losses);
  share(result.norms);
  for (const auto& item : model->named_parameters()) {
    result.weights.emplace_back(item.key(), item.value().detach());
    share(result.weights.back().second);
  }
  result.losses = result.losses.cpu();
  result.norms = result.norms.cpu();
  return result;
}

Perceptron make_perceptron(bool recompute = false) {
  torch::manual_seed(6);
  return Perceptron(ModelOptions{recompute});
}
Transformer make_transformer(bool recompute = false) {
  torch::manual_seed(6);
  return Transformer(ModelOptions{recompute});
}
Torture make_torture(bool recompute, int64_t experts) {
  torch::manual_seed(7);
  return Torture(ModelOptions{recompute}, experts);
}

Reference make_reference(const ReferenceKey& key, int64_t trainer) {
  switch (key.kind) {
    case Kind::perceptron: return make_reference(make_perceptron(), key, trainer);
    case Kind::transformer: return make_reference(make_transformer(), key, trainer);
    default: break;
  }
  const int64_t experts = expert_mesh(key.kind).size("ep");
  auto model = make_torture(false, experts);
  return make_reference(
      model, key, trainer, [&](int64_t rank) { model->use_expert(rank % experts); });
}

/// Neither placement nor granule nor recompute changes it, so it is made once. Collective when it
/// is first asked for; ranks take turns in making them.
const Reference& reference_of(const Case& one) {
  static std::map<ReferenceKey, Reference> all;
  const ReferenceKey key{one.kind, one.micro_batches, one.optimizer};
  auto found = all.find(key);
  if (found == all.end()) {
    found = all.emplace(key, make_reference(key, std::ssize(all) % test_world().size())).first;
  }
  return found->second;
}

// ---- the sharded model --------------------------------------------------------------------------

/// Trains the model and compares every loss and norm, the final weights, and what each rank has.
template <class Holder>
void expect_parity(
    Holder model, const Case& one, UnitOptions options, int64_t experts = 1, int64_t expert = 0) {
  const auto& reference = reference_of(one);
  const auto& world = test_world();
  to_device(*model);
  add_granules(options, one.granules, *model);
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  micro_batches(model, one.micro_batches);
  auto optimizer = make_optimizer(one.optimizer, parameters(model));
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t micro_batch = 0; micro_batch < one.micro_batches; ++micro_batch) {
      const auto batch = batch_of(one.kind, step, micro_batch, world.rank());
      auto loss = model(batch.input, batch.target);
      expect_loss(
          loss.template item<double>(),
          reference.losses[step][micro_batch][world.rank()].template item<double>());
      loss.backward();
    }
    if (step == 0 || step + 1 == kSteps) {
      const double norm = reference.norms[step].template item<double>();
      EXPECT_NEAR(gradient_norm(model), norm, tolerance(one.optimizer) * norm) << step;
    }
    sherd::step(model, *optimizer);
  }
  NamedTensors mine;
  NamedTensors all;
  for (const auto& [name, value] : full_parameters(model)) {
    if (with_expert(name, 1) == name) {
      mine.emplace_back(name, value);
      all.emplace_back(name, value);
      continue;
    }
    mine.emplace_back(name, part_of(value, experts, expert));  // the whole has all experts
    for (int64_t i = 0; i < experts; ++i) {
      all.emplace_back(with_expert(name, i), part_of(value, experts, i));
    }
  }
  expect_granules(named_parameters(model), mine, one.granules);
  expect_weights(all, reference.weights, tolerance(one.optimizer));
}

/// With the values of this rank's expert.
Torture make_with_expert(bool recompute, int64_t experts, int64_t mine) {
  const auto all = make_torture(recompute, experts);
  auto model = make_torture(recompute, 1);
  const torch::NoGradGuard no_grad;
  const auto values = all->named_parameters();
  for (auto& item : model->named_parameters()) {
    item.value().copy_(values[with_expert(item.key(), mine)]);
  }
  return model;
}

class ParityTest : public ::testing::TestWithParam<Case> {};

TEST_P(ParityTest, TrainsLikeUnsharded) {
  const auto& one = GetParam();
  UnitOptions options{.mesh = mesh_for(one.way), .placement = one.way.placement};
  switch (one.kind) {
    case Kind::perceptron: return expect_parity(make_perceptron(one.recompute), one, options);
    case Kind::transformer: return expect_parity(make_transformer(one.recompute), one, options);
    default: break;
  }
  const auto mesh = expert_mesh(one.kind);
  const int64_t experts = mesh.size("ep");
  const int64_t mine = mesh.coordinate("ep");
  const auto model = make_with_expert(one.recompute, experts, mine);
  const auto lines = one.kind == Kind::torture ? mesh.sub({"dp"}) : mesh.sub({"dp_outer", "dp"});
  options.rules = {
      {.match = "*expert*",
       .mesh = lines,
       .placement = expert_placement(one),
       .cut = cut_into(experts, mine, model->blocks[0]->experts[0].sizes())}};
  expect_parity(model, one, options, experts, mine);
}

INSTANTIATE_TEST_SUITE_P(Cases, ParityTest, ::testing::ValuesIn(cases()), [](const auto& one) {
  return one.param.name();
});

/// The default run leaves out combinations of three settings, never of two.
TEST(ParityTest, EveryPairOfSettingsIsAmongTheCases) {
  const auto levels = factors();
  std::set<LevelPair> covered;
  for (const auto& combination : combinations(levels)) covered.merge(pairs_of(combination));
  size_t pairs = 0;
  for (size_t a = 0; a < levels.size(); ++a) {
    for (size_t b = a + 1; b < levels.size(); ++b) pairs += levels[a] * levels[b];
  }
  EXPECT_EQ(covered.size(), pairs);
}

}  // namespace
}  // namespace sherd::testing
