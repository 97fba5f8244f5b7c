// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd {

/// The types of modules that become units: `sherd::UnitTypes<Block, Embedding>{}` (holders).
template <class... Holders>
struct UnitTypes {
  static bool contain(const torch::nn::Module& module) {
    return (... || (dynamic_cast<const typename Holders::ContainedType*>(&module) != nullptr));
  }
};

/// A model sharded in one go, for who knows DistributedDataParallel: every module of the given
/// types becomes a unit, inner ones first, and the model the root. Calls go to the model.
template <class Holder>
class FullyShardedDataParallel {
 public:
  template <class... Holders>
  FullyShardedDataParallel(
      Holder model, UnitTypes<Holders...> types, const ShardOptions& options = {})
      : model_(std::move(model)) {
    // The order in which modules were registered, turned round only where one contains another.
    std::set<const torch::nn::Module*> seen;
    shard_inside(*model_, types, options, seen);
    fully_shard(std::shared_ptr<torch::nn::Module>(model_.ptr()), options);
  }

  template <class... Args>
  auto operator()(Args&&... args) {
    return call(*model_, std::forward<Args>(args)...);
  }

  auto operator->() { return model_.ptr().get(); }
  const Holder& module() const { return model_; }

 private:
  template <class Types>
  static void shard_inside(
      const torch::nn::Module& module,
      const Types& types,
      const ShardOptions& options,
      std::set<const torch::nn::Module*>& seen) {
    for (const auto& child : module.children()) {
      if (!seen.insert(child.get()).second) continue;  // registered under another name too
      shard_inside(*child, types, options, seen);
      if (Types::contain(*child)) fully_shard(child, options);
    }
  }

  Holder model_;
};

}  // namespace sherd
