// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>

namespace sherd {

/// An argument that is a module: made from a torch::nn::Module, a std::shared_ptr to one, or a
/// holder (TORCH_MODULE, SHERD_MODULE, Sequential). Null pointers and empty holders throw. A const
/// module is accepted as well, although the functions change its parameters, as an optimizer does.
/// Not meant to be stored.
class ModuleRef {
 public:
  ModuleRef(const torch::nn::Module& module)  // NOLINT(google-explicit-constructor)
      : module_(const_cast<torch::nn::Module*>(&module)) {}
  template <class M>
  requires std::convertible_to<M*, torch::nn::Module*> ModuleRef(
      const std::shared_ptr<M>& module)  // NOLINT(google-explicit-constructor)
      : module_(module.get()), owner_(module) {
    TORCH_CHECK_VALUE(module_, "[shard] the module is a null pointer: create it first");
  }
  template <class Contained>
  ModuleRef(const torch::nn::ModuleHolder<Contained>& holder)  // NOLINT
      : ModuleRef(holder.is_empty() ? nullptr : holder.ptr()) {}

  torch::nn::Module& operator*() const { return *module_; }
  torch::nn::Module* operator->() const { return module_; }
  torch::nn::Module* get() const { return module_; }
  /// Returns a pointer that shares ownership of the module. Throws if no std::shared_ptr owns it,
  /// as for a module on the stack.
  std::shared_ptr<torch::nn::Module> share() const {
    auto shared = owner_ ? owner_ : module_->weak_from_this().lock();
    TORCH_CHECK_VALUE(
        shared, "[shard] no std::shared_ptr owns module '", module_->name(),
        "': create it with its holder or std::make_shared");
    return shared;
  }

 private:
  torch::nn::Module* module_;
  std::shared_ptr<torch::nn::Module> owner_;  // null if made from a reference
};

}  // namespace sherd
