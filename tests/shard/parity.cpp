// SPDX-License-Identifier: Apache-2.0
#include "shard/parity.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <deque>
#include <stdexcept>

namespace sherd::testing {

std::vector<ShardingCase> all_ways() {
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
      {"grads_optim", Placement(optim_grads, optim), true},
  };
}

namespace {

/// Meshes are shared by all tests of a process: NCCL takes long to open their communicators.
class Meshes : public ::testing::Environment {
 public:
  const Mesh& get(const std::vector<Axis>& axes) {
    for (const auto& mesh : meshes_) {
      if (mesh.axes() == axes) return mesh;
    }
    return meshes_.emplace_back(test_world(), axes);
  }
  void TearDown() override { meshes_.clear(); }

 private:
  std::deque<Mesh> meshes_;
};

Meshes& meshes() {
  // Owned by GoogleTest.
  static auto& one = *static_cast<Meshes*>(::testing::AddGlobalTestEnvironment(new Meshes()));
  return one;
}
[[maybe_unused]] const auto& registered_before_main = meshes();

}  // namespace

Mesh shared_mesh(const std::vector<Axis>& axes) {
  return meshes().get(axes);
}

ShardingCase way_called(const std::string& name) {
  for (const auto& way : all_ways()) {
    if (way.name == name) return way;
  }
  throw std::invalid_argument("no sharding case is called '" + name + "'");
}

Mesh mesh_for(const ShardingCase& way) {
  const int64_t size = test_world().size();
  if (!way.two_axes) return shared_mesh({{"dp", size}});
  const int64_t outer = size % 2 == 0 ? 2 : 1;
  return shared_mesh({{"dp_outer", outer}, {"dp", size / outer}});
}

Cut cut_into(int64_t count, int64_t index, at::IntArrayRef part) {
  auto shape = part.vec();
  shape[0] *= count;
  return {shape, 0, {{index * part[0], (index + 1) * part[0]}}};
}

std::vector<ParameterRule> rules_cutting_into(
    int64_t count, int64_t index, const torch::nn::Module& module, const Mesh& mesh) {
  std::vector<ParameterRule> rules;
  for (const auto& item : module.named_parameters()) {
    rules.push_back(
        {.match = item.key(), .mesh = mesh, .cut = cut_into(count, index, item.value().sizes())});
  }
  return rules;
}

at::Tensor part_of(const at::Tensor& whole, int64_t count, int64_t index) {
  const int64_t rows = whole.size(0) / count;
  return whole.narrow(0, index * rows, rows);
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
  NamedTensors expected;
  for (const auto& item : reference.named_parameters()) {
    expected.emplace_back(item.key(), item.value().detach());
  }
  expect_weights(sharded, expected, tolerance);
}

void expect_weights(const NamedTensors& sharded, const NamedTensors& reference, double tolerance) {
  EXPECT_FALSE(sharded.empty());
  for (const auto& [name, value] : sharded) {
    const auto other = std::find_if(
        reference.begin(), reference.end(), [&](const auto& item) { return item.first == name; });
    ASSERT_NE(other, reference.end()) << name;
    const auto a = value.to(torch::kDouble).cpu();
    const auto b = other->second.to(torch::kDouble).cpu();
    ASSERT_EQ(a.sizes(), b.sizes()) << name;
    const double difference = (a - b).norm().item<double>();
    EXPECT_LE(difference, tolerance * b.norm().item<double>()) << name;
  }
}

NamedTensors parameters_without_copies(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters()) {
    const bool seen = std::any_of(result.begin(), result.end(), [&](const auto& other) {
      return other.second.is_same(item.value());
    });
    if (!seen) result.emplace_back(item.key(), item.value());
  }
  return result;
}

void to_device(torch::nn::Module& module) {
  module.to(test_world().device());
}

}  // namespace sherd::testing
