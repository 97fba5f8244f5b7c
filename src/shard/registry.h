// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "shard/unit/unit.h"

namespace torch::nn {
class Module;
}

namespace sherd {

/// The unit that owns a parameter, with its position there; null if none does.
struct Owner {
  std::shared_ptr<Unit> unit;
  size_t group = 0;
  size_t member = 0;
};

/// The modules that are units, and the owner of each parameter. Entries keep nothing alive but
/// units without parameters; an entry whose address was reused is recognised by its expired
/// pointer. Any thread.
class Registry {
 public:
  void add(const std::shared_ptr<torch::nn::Module>& module, const std::shared_ptr<Unit>& unit);
  void add(
      const at::Tensor& parameter, const std::shared_ptr<Unit>& unit, size_t group, size_t member);
  void remove(const at::Tensor& parameter);
  /// Notes a parameter that no unit may own (UnitOptions::ignored).
  void ignore(const at::Tensor& parameter);
  bool is_ignored(const at::Tensor& parameter);
  /// Keeps a unit alive, or stops doing so. A unit without parameters has no parameter that would:
  /// the registry does, until another unit can (Unit::keep_alive).
  void keep_alive(const std::shared_ptr<Unit>& unit, bool alive);
  std::shared_ptr<Unit> find(const torch::nn::Module* module);
  Owner find(const at::Tensor& parameter);
  std::shared_ptr<torch::nn::Module> module_of(const Unit& unit);

 private:
  struct ModuleEntry {
    std::weak_ptr<torch::nn::Module> module;
    std::weak_ptr<Unit> unit;
    std::shared_ptr<Unit> kept_alive;  // null: its parameters or another unit do that
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

/// Returns the unit of a module; null if it is none.
std::shared_ptr<Unit> find_unit(const torch::nn::Module* module);
std::shared_ptr<torch::nn::Module> module_of(const Unit& unit);
/// Returns the owner of a parameter.
Owner find_owner(const at::Tensor& parameter);

}  // namespace sherd
