// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd {

/// The module types that become units, by their holders: `sherd::UnitTypes<Block, Embedding>{}`.
template <class... Holders>
struct UnitTypes {
  /// Returns whether a module is of one of the types, or derived from one.
  static bool contain(const torch::nn::Module& module) {
    return (... || (dynamic_cast<const typename Holders::ContainedType*>(&module) != nullptr));
  }
};

/// A wrapper that shards a model in its constructor, much as DistributedDataParallel wraps one.
/// Calls go to the model. Use module() where a function wants the root.
template <class Holder>
class FullyShardedDataParallel {
 public:
  /// Makes every module of the given types a unit, inner ones first, and the model the root, all
  /// with the same options. Collective and blocking, as fully_shard is.
  template <class... Holders>
  FullyShardedDataParallel(
      Holder model, UnitTypes<Holders...> types, const UnitOptions& options = {})
      : model_(std::move(model)) {
    shard_inside(types, options);
    fully_shard(model_, options);
  }
  /// The same, with options for the whole model.
  template <class... Holders>
  FullyShardedDataParallel(
      Holder model,
      UnitTypes<Holders...> types,
      const UnitOptions& options,
      const RootOptions& root)
      : model_(std::move(model)) {
    shard_inside(types, options);
    fully_shard(model_, options, root);
  }

  /// Runs the model's forward.
  template <class... Args>
  auto operator()(Args&&... args) {
    return call(*model_, std::forward<Args>(args)...);
  }

  auto operator->() { return model_.ptr().get(); }
  /// Returns the model, for functions such as sherd::program and AdamW.
  const Holder& module() const { return model_; }

 private:
  /// In the order of registration, except that inner modules come before those around them.
  template <class Types>
  void shard_inside(const Types& types, const UnitOptions& options) {
    std::set<const torch::nn::Module*> seen;
    shard_inside(*model_, types, options, seen);
  }

  template <class Types>
  static void shard_inside(
      const torch::nn::Module& module,
      const Types& types,
      const UnitOptions& options,
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
