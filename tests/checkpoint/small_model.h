// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "sherd/nn/linear.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd::testing {

/// Uneven sizes, a scalar, a frozen parameter, a running mean.
struct SmallBlockImpl : torch::nn::Module {
  SmallBlockImpl() {
    linear = register_module("linear", Linear(7, 5));
    factor = register_parameter("factor", at::full({}, 0.5));
    frozen =
        register_parameter("frozen", at::tensor({0.25F, -1.5F, 3.0F}), /*requires_grad=*/false);
    mean = register_buffer("mean", at::zeros({5}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto y = linear(x) * factor + frozen.sum();
    mean.mul_(0.75).add_(y.detach().mean(0).to(at::kFloat), 0.25);
    return y - mean.to(y.scalar_type());
  }
  Linear linear{nullptr};
  at::Tensor factor, frozen, mean;
};
SHERD_MODULE(SmallBlock);

struct SmallModelImpl : torch::nn::Module {
  SmallModelImpl() {
    first = register_module("first", SmallBlock());
    second = register_module("second", SmallBlock());
    head = register_module("head", Linear(5, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return head(first(x) + second(x)).square().mean(); }
  SmallBlock first{nullptr}, second{nullptr};
  Linear head{nullptr};
};
SHERD_MODULE(SmallModel);

/// A sharded model and its optimizer, with other values for another seed.
struct Subject {
  Subject(const World& world, const UnitOptions& options, uint64_t seed) : device(world.device()) {
    at::manual_seed(seed);
    model = SmallModel();
    model->to(device);
    fully_shard(model->first, options);
    fully_shard(model->second, options);
    fully_shard(model, options);
    optimizer.emplace(model, AdamWOptions{.lr = 0.05});
  }
  /// All ranks have the same data, so that their number makes no difference.
  double step(int64_t number) {
    at::manual_seed(static_cast<uint64_t>(number));
    const auto loss = model(at::randn({4, 7}).to(device));
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  }
  c10::Device device;
  SmallModel model{nullptr};
  std::optional<AdamW> optimizer;
};

}  // namespace sherd::testing
