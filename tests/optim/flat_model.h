// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "shard/failure_fixture.h"
#include "shard/twin.h"
#include "sherd/optim/adamw.h"

namespace sherd::testing {

/// Parameters of all sizes, some smaller than the number of ranks. The gradient of each is what the
/// forward is given, whatever its value.
struct FlatUnitImpl : torch::nn::Module {
  FlatUnitImpl() {
    int64_t number = 0;
    for (const auto& shape : std::vector<std::vector<int64_t>>{{17, 5}, {1}, {3}, {2, 2}, {40}}) {
      weights.push_back(
          register_parameter("weight" + std::to_string(number++), torch::randn(shape)));
    }
  }
  at::Tensor forward(int64_t seed) {
    auto sum = torch::zeros({}, weights[0].options());
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto gradient = random_input(seed, static_cast<int64_t>(i), 0, weights[i].sizes());
      sum = sum + (weights[i] * gradient.to(weights[i].device())).sum();
    }
    return sum;
  }
  std::vector<at::Tensor> weights;
};
SHERD_MODULE(FlatUnit);

struct FlatModelImpl : torch::nn::Module {
  FlatModelImpl() {
    for (int i = 0; i < 3; ++i) {
      units.push_back(register_module("unit" + std::to_string(i), FlatUnit()));
    }
    scale = register_parameter("scale", torch::tensor(1.0f));
  }
  at::Tensor forward(int64_t seed) {
    auto sum = scale * 0.25;
    for (size_t i = 0; i < units.size(); ++i) {
      sum = sum + units[i](seed * 10 + static_cast<int64_t>(i));
    }
    return sum;
  }
  std::vector<FlatUnit> units;
  at::Tensor scale;
};
SHERD_MODULE(FlatModel);

inline FlatModel make_flat_model(uint64_t seed = 4) {
  torch::manual_seed(seed);
  FlatModel model;
  to_device(*model);
  return model;
}

inline FlatModel make_sharded_flat_model(const UnitOptions& options, const RootOptions& root = {}) {
  auto model = make_flat_model();
  for (auto& unit : model->units) fully_shard(unit, options);
  fully_shard(model, options, root);
  return model;
}

/// The same gradients for both.
inline void train_both(
    FlatModel& model,
    AdamW& optimizer,
    FlatModel& reference,
    torch::optim::AdamW& torchs,
    int64_t steps,
    int64_t first = 0) {
  for (int64_t step = first; step < first + steps; ++step) {
    model(step).backward();
    optimizer.step();
    reference->zero_grad();
    reference->forward(step).backward();
    torchs.step();
  }
}

}  // namespace sherd::testing
