// SPDX-License-Identifier: Apache-2.0
#include "shard/parity.h"

#include <ATen/CPUGeneratorImpl.h>

namespace sherd::testing {

std::vector<Way> all_ways() {
  using enum Strategy;
  return {
      {"no_shard", Placement(no_shard)},
      {"optim", Placement(optim)},
      {"optim_grads", Placement(optim_grads)},
      {"optim_grads_params", Placement(optim_grads_params)},
      {"HSDP", Placement(optim_grads_params, no_shard), true},
      {"HFSDP", Placement(optim_grads_params, optim), true},
      {"both_optim", Placement(optim, optim), true},
      {"both_grads", Placement(optim_grads, optim_grads), true},
      {"params_grads", Placement(optim_grads_params, optim_grads), true},
      {"both_params", Placement(optim_grads_params, optim_grads_params), true},
  };
}

Mesh mesh_for(const Way& way) {
  const auto& world = test_world();
  if (!way.two_axes) return Mesh(world, {{"dp", world.size()}});
  const int64_t outer = world.size() % 2 == 0 ? 2 : 1;
  return Mesh(world, {{"dp_outer", outer}, {"dp", world.size() / outer}});
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Optimizer kind, std::vector<at::Tensor> parameters) {
  if (kind == Optimizer::sgd) {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.01));
  }
  return std::make_unique<torch::optim::AdamW>(
      std::move(parameters), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

at::Tensor random_input(int64_t step, int64_t micro_batch, int64_t rank, at::IntArrayRef shape) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(((step + 1) * 100 + micro_batch) * 100 + rank));
  return torch::randn(shape, generator);
}

void expect_weights(
    const NamedTensors& sharded, const torch::nn::Module& reference, double tolerance) {
  const auto expected = reference.named_parameters();
  EXPECT_FALSE(sharded.empty());
  for (const auto& [name, value] : sharded) {
    const auto* other = expected.find(name);
    ASSERT_NE(other, nullptr) << name;
    const auto a = value.to(torch::kDouble).cpu();
    const auto b = other->detach().to(torch::kDouble).cpu();
    ASSERT_EQ(a.sizes(), b.sizes()) << name;
    const double difference = (a - b).norm().item<double>();
    EXPECT_LE(difference, tolerance * b.norm().item<double>()) << name;
  }
}

void to_device(torch::nn::Module& module) {
  module.to(test_world().device());
}

}  // namespace sherd::testing
