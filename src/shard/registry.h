// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "shard/unit.h"

namespace sherd {

/// The modules that are units, and the owner of each parameter. Entries keep nothing alive; an
/// entry whose address was reused is recognised by its expired pointer. Any thread.
class Registry {
 public:
  void add(const std::shared_ptr<torch::nn::Module>& module, const std::shared_ptr<Unit>& unit);
  void add(
      const at::Tensor& parameter, const std::shared_ptr<Unit>& unit, size_t group, size_t member);
  void remove(const at::Tensor& parameter);
  /// Notes a parameter that no unit may own (UnitOptions::ignored).
  void ignore(const at::Tensor& parameter);
  bool is_ignored(const at::Tensor& parameter);
  /// Keeps a unit alive, or stops doing so. Parameters keep their unit alive; a unit that has none
  /// is kept by the registry until another unit can keep it.
  void keep(const std::shared_ptr<Unit>& unit, bool kept);
  std::shared_ptr<Unit> find(const torch::nn::Module* module);
  Owner find(const at::Tensor& parameter);
  std::shared_ptr<torch::nn::Module> module_of(const Unit& unit);

 private:
  struct ModuleEntry {
    std::weak_ptr<torch::nn::Module> module;
    std::weak_ptr<Unit> unit;
    std::shared_ptr<Unit> kept;
  };
  struct ParameterEntry {
    std::weak_ptr<Unit> unit;
    size_t group = 0;
    size_t member = 0;
  };
  void sweep();

  std::shared_mutex mutex_;
  std::unordered_map<const torch::nn::Module*, ModuleEntry> modules_;
  std::unordered_map<const c10::TensorImpl*, ParameterEntry> parameters_;
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> ignored_;
};

Registry& registry();

}  // namespace sherd
