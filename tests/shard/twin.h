// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shard/parity.h"

namespace sherd::testing {

// ---- a model whose way through its blocks a test chooses ----------------------------------------

struct LinkImpl : torch::nn::Module {
  explicit LinkImpl(int64_t dim = 6);
  at::Tensor forward(const at::Tensor& x);
  std::function<at::Tensor(const at::Tensor&)> inside;  ///< what happens between the two
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor spare;  // never used
};
SHERD_MODULE(Link);

struct ChainImpl : torch::nn::Module {
  using Route = std::function<at::Tensor(ChainImpl&, const at::Tensor&)>;
  explicit ChainImpl(int64_t links = 4);
  at::Tensor forward(const at::Tensor& x);
  Route route;  ///< default: one after another
  torch::nn::Linear in{nullptr};
  std::vector<Link> links;
  at::Tensor scale;
};
SHERD_MODULE(Chain);

/// A sharded chain and the same unsharded, on the data of all ranks.
class Twin {
 public:
  explicit Twin(
      UnitOptions options = {},
      int64_t links = 4,
      const std::function<void(Chain&, const UnitOptions&)>& shard = shard_in_order,
      const std::function<void(Chain&)>& prepare = {});  ///< both, before one is sharded
  /// Sharded in order, with options of the root.
  Twin(const UnitOptions& options, const RootOptions& root);

  static void shard_in_order(Chain& model, const UnitOptions& options);

  /// One rank's part of a step: forwards and backwards, on a model that may be either.
  using Flow = std::function<void(Chain& model, int64_t rank, int64_t step)>;
  /// Runs the flow `steps` times on both, with an update after each, and compares the weights.
  void expect_same(const Flow& flow, int64_t steps = 3);
  void set_route(const ChainImpl::Route& route);

  Chain model;
  Chain reference;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<torch::optim::Optimizer> reference_optimizer_;
};

at::Tensor chain_input(int64_t rank, int64_t step, int64_t micro_batch = 0);
/// A forward and its backward.
void train_once(Chain& model, int64_t rank, int64_t step, int64_t micro_batch = 0);

inline UnitOptions options_for(const ShardingCase& way) {
  return {.mesh = mesh_for(way), .placement = way.placement};
}

}  // namespace sherd::testing
