// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <string>
#include <vector>

#include "sherd/nn/exchange.h"
#include "sherd/nn/recompute.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/initialise.h"
#include "sherd/shard/module.h"

// A model whose blocks, each a unit, exchange activations along one axis.
namespace sherd::testing {

constexpr int64_t kExchangedDim = 12;  // divisible by 1 to 4 ranks

struct ExchangingBlockImpl : torch::nn::Module {
  using Function = std::function<at::Tensor(const Exchange&, const at::Tensor&)>;

  ExchangingBlockImpl(Exchange ranks, bool again) : exchange(std::move(ranks)), recomputes(again) {
    linear = register_module("linear", torch::nn::Linear(kExchangedDim, kExchangedDim));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto layer = [this](const at::Tensor& in) { return in + function(exchange, linear(in)); };
    return recomputes ? recompute(layer, x) : layer(x);
  }

  Exchange exchange;
  bool recomputes;
  torch::nn::Linear linear{nullptr};
  /// What the block exchanges; by default its rows are gathered, and the sums of what follows
  /// scattered.
  Function function = [](const Exchange& ranks, const at::Tensor& rows) {
    return ranks.scatter_sum(ranks.gather_rows(rows, 0).sin(), 0);
  };
};
SHERD_MODULE(ExchangingBlock);

struct ExchangingModelImpl : torch::nn::Module {
  /// `mesh` has the axis "tp"; the exchanges run along it.
  ExchangingModelImpl(const Mesh& mesh, bool recomputes, int64_t count = 2) {
    const Exchange exchange(mesh, "tp", "test");
    for (int64_t i = 0; i < count; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i), ExchangingBlock(exchange, recomputes)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x.square().mean();
  }
  std::vector<ExchangingBlock> blocks;
};
SHERD_MODULE(ExchangingModel);

/// All ranks of the world along "tp", unless `size` says how many.
inline ExchangingModel exchanging_model(
    const World& world, bool recomputes = false, int64_t size = 0) {
  const int64_t ranks = size == 0 ? world.size() : size;
  const Mesh mesh(world, {{"others", world.size() / ranks}, {"tp", ranks}});
  torch::manual_seed(3);
  ExchangingModel model(nullptr);
  if (world.device().is_meta()) {
    const MetaDevice meta;
    model = ExchangingModel(mesh, recomputes);
  } else {
    model = ExchangingModel(mesh, recomputes);
    model->to(world.device());
  }
  const UnitOptions options{.mesh = Mesh(world, {{"dp", world.size()}})};
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  return model;
}

inline at::Tensor exchanged_rows(const World& world, int64_t rows = 6) {
  return at::ones({rows, kExchangedDim}, world.device());
}

}  // namespace sherd::testing
