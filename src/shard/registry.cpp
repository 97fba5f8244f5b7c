// SPDX-License-Identifier: Apache-2.0
#include "shard/registry.h"

#include <torch/nn/module.h>

namespace sherd {

Registry& registry() {
  // Never destroyed: models may outlive the statics of this library.
  static auto& one = *new Registry();
  return one;
}

void Registry::sweep() {
  std::erase_if(modules_, [](const auto& entry) { return entry.second.module.expired(); });
  std::erase_if(parameters_, [](const auto& entry) { return entry.second.unit.expired(); });
  std::erase_if(ignored_, [](const auto& entry) { return entry.second.expired(); });
}

void Registry::add(
    const std::shared_ptr<torch::nn::Module>& module, const std::shared_ptr<Unit>& unit) {
  std::vector<std::shared_ptr<Unit>> dead;  // destroyed after the lock is gone
  std::unique_lock lock(mutex_);
  for (auto& [address, entry] : modules_) {
    if (entry.module.expired()) dead.push_back(std::move(entry.kept_alive));
  }
  sweep();
  modules_[module.get()] = {module, unit, unit->groups().empty() ? unit : nullptr};
}

void Registry::keep_alive(const std::shared_ptr<Unit>& unit, bool alive) {
  std::unique_lock lock(mutex_);
  for (auto& [address, entry] : modules_) {
    if (entry.unit.lock() == unit) entry.kept_alive = alive ? unit : nullptr;
  }
}

void Registry::add(
    const at::Tensor& parameter, const std::shared_ptr<Unit>& unit, size_t group, size_t member) {
  std::unique_lock lock(mutex_);
  parameters_[parameter.unsafeGetTensorImpl()] = {unit, group, member};
}

void Registry::remove(const at::Tensor& parameter) {
  std::unique_lock lock(mutex_);
  parameters_.erase(parameter.unsafeGetTensorImpl());
}

void Registry::ignore(const at::Tensor& parameter) {
  std::unique_lock lock(mutex_);
  ignored_.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()));
}

bool Registry::is_ignored(const at::Tensor& parameter) {
  std::shared_lock lock(mutex_);
  const auto found = ignored_.find(parameter.unsafeGetTensorImpl());
  return found != ignored_.end() && !found->second.expired();
}

std::shared_ptr<Unit> Registry::find(const torch::nn::Module* module) {
  std::shared_lock lock(mutex_);
  const auto found = modules_.find(module);
  if (found == modules_.end() || found->second.module.expired()) return nullptr;
  return found->second.unit.lock();
}

Owner Registry::find(const at::Tensor& parameter) {
  std::shared_lock lock(mutex_);
  const auto found = parameters_.find(parameter.unsafeGetTensorImpl());
  if (found == parameters_.end()) return {};
  return {found->second.unit.lock(), found->second.group, found->second.member};
}

std::shared_ptr<torch::nn::Module> Registry::module_of(const Unit& unit) {
  std::shared_lock lock(mutex_);
  for (const auto& [address, entry] : modules_) {
    if (entry.unit.lock().get() == &unit) return entry.module.lock();
  }
  return nullptr;
}

std::shared_ptr<Unit> find_unit(const torch::nn::Module* module) {
  return registry().find(module);
}

std::shared_ptr<torch::nn::Module> module_of(const Unit& unit) {
  return registry().module_of(unit);
}

bool is_ignored(const at::Tensor& parameter) {
  return registry().is_ignored(parameter);
}

Owner find_owner(const at::Tensor& parameter) {
  return registry().find(parameter);
}

}  // namespace sherd
