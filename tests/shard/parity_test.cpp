// SPDX-License-Identifier: Apache-2.0
// The sharded model against the same model, unsharded, trained on the data of all ranks.
#include "shard/parity.h"

namespace sherd::testing {
namespace {

constexpr int64_t kSteps = 10;

struct Setting {
  Way way;
  int64_t micro_batches = 1;
  bool recompute = false;
  Optimizer optimizer = Optimizer::sgd;
};

double tolerance(Optimizer optimizer) {
  return optimizer == Optimizer::sgd ? 1e-5 : 2e-3;
}

/// Trains both and compares every loss and the final weights. `prepare` is called before a forward
/// of the reference, with the rank whose data it gets.
template <class Holder>
void compare(
    Holder model,
    Holder reference,
    const Setting& setting,
    const std::function<Batch(int64_t step, int64_t micro_batch, int64_t rank)>& data,
    const std::function<void(int64_t rank)>& prepare = [](int64_t) {}) {
  const auto& world = test_world();
  micro_batches(model, setting.micro_batches);
  auto optimizer = make_optimizer(setting.optimizer, parameters(model));
  std::vector<at::Tensor> trained;
  for (const auto& parameter : reference->parameters()) {
    const bool seen = std::any_of(trained.begin(), trained.end(), [&](const at::Tensor& other) {
      return other.is_same(parameter);
    });
    if (parameter.requires_grad() && !seen) trained.push_back(parameter);
  }
  auto reference_optimizer = make_optimizer(setting.optimizer, trained);
  for (int64_t step = 0; step < kSteps; ++step) {
    // A parameter that no rank used still has a gradient, of zero.
    for (auto& parameter : trained) parameter.mutable_grad() = torch::zeros_like(parameter);
    for (int64_t micro_batch = 0; micro_batch < setting.micro_batches; ++micro_batch) {
      double expected = 0;
      for (int64_t rank = 0; rank < world.size(); ++rank) {
        const auto batch = data(step, micro_batch, rank);
        prepare(rank);
        auto loss = reference(batch.input, batch.target);
        if (rank == world.rank()) expected = loss.template item<double>();
        (loss / world.size()).backward();
      }
      const auto batch = data(step, micro_batch, world.rank());
      auto loss = model(batch.input, batch.target);
      expect_loss(loss.template item<double>(), expected);
      loss.backward();
    }
    sherd::step(model, *optimizer);
    reference_optimizer->step();
  }
}

template <class Holder>
void shard_blocks(Holder& model, const ShardOptions& options) {
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
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

class ParityTest : public ::testing::TestWithParam<Way> {
 protected:
  template <class Run>
  void for_settings(Run run) {
    for (const int64_t micro_batches : {1, 3}) {
      for (const bool recompute : {false, true}) {
        for (const auto optimizer : {Optimizer::sgd, Optimizer::adamw}) {
          SCOPED_TRACE(c10::str(
              GetParam().name, ", ", micro_batches, " micro-batches, recompute ", recompute,
              optimizer == Optimizer::sgd ? ", SGD" : ", AdamW"));
          run(Setting{GetParam(), micro_batches, recompute, optimizer});
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

TEST_P(ParityTest, PerceptronTrainsLikeUnsharded) {
  for_settings([](const Setting& setting) {
    torch::manual_seed(6);
    Perceptron reference{ModelOptions{}};
    torch::manual_seed(6);
    Perceptron model(ModelOptions{setting.recompute});
    to_device(*model);
    to_device(*reference);
    shard_blocks(model, {.mesh = mesh_for(setting.way), .placement = setting.way.placement});
    compare(model, reference, setting, perceptron_batch);
    expect_weights(full_parameters(model), *reference, tolerance(setting.optimizer));
  });
}

TEST_P(ParityTest, TransformerWithTiedEmbeddingsTrainsLikeUnsharded) {
  for_settings([](const Setting& setting) {
    torch::manual_seed(6);
    Transformer reference{ModelOptions{}};
    torch::manual_seed(6);
    Transformer model(ModelOptions{setting.recompute});
    to_device(*model);
    to_device(*reference);
    shard_blocks(model, {.mesh = mesh_for(setting.way), .placement = setting.way.placement});
    compare(model, reference, setting, transformer_batch);
    expect_weights(full_parameters(model), *reference, tolerance(setting.optimizer));
  });
}

/// Every other mesh has an axis of experts, and each rank its own expert.
TEST_P(ParityTest, TortureTrainsLikeUnsharded) {
  for_settings([](const Setting& setting) {
    const auto& world = test_world();
    const int64_t experts = world.size() % 2 == 0 ? 2 : 1;
    // Ranks r and r + 1 have different experts.
    const auto expert_mesh = shared_mesh({{"dp", world.size() / experts}, {"ep", experts}});
    const int64_t mine = expert_mesh.coordinate("ep");
    torch::manual_seed(7);
    Torture reference(ModelOptions{setting.recompute}, experts);
    torch::manual_seed(7);
    Torture model(ModelOptions{setting.recompute}, 1);
    {
      const torch::NoGradGuard no_grad;
      const auto values = reference->named_parameters();
      for (auto& item : model->named_parameters()) {
        auto name = item.key();
        if (const auto at = name.find("expert0"); at != std::string::npos) {
          name.replace(at, 7, "expert" + std::to_string(mine));
        }
        item.value().copy_(values[name]);
      }
    }
    to_device(*model);
    to_device(*reference);
    ShardOptions options{.mesh = mesh_for(setting.way), .placement = setting.way.placement};
    const auto inner = setting.way.placement.spreads(Role::parameter).inner == Spread::shard
                           ? Strategy::optim_grads_params
                           : Strategy::optim_grads;
    options.rules = {{.match = "*expert*", .mesh = expert_mesh, .placement = Placement(inner)}};
    shard_blocks(model, options);
    compare(model, reference, setting, perceptron_batch, [&](int64_t rank) {
      reference->use_expert(rank % experts);
    });
    auto weights = full_parameters(model);
    for (auto& [name, value] : weights) {
      if (const auto at = name.find("expert0"); at != std::string::npos) {
        name.replace(at, 7, "expert" + std::to_string(mine));
      }
    }
    expect_weights(weights, *reference, tolerance(setting.optimizer));
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, ParityTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

}  // namespace
}  // namespace sherd::testing
