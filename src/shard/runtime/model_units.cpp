// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/model_units.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "shard/registry.h"
#include "shard/runtime/runtime.h"

namespace sherd {

namespace {

/// Throws unless a unit that has another root may get a new one.
void check_free(const Unit& unit, const Unit& root) {
  if (!unit.runtime() || !unit.runtime()->units().has_root()) return;
  unit.runtime()->check_between_passes("a new root");
  TORCH_CHECK(
      unit.runtime()->state().backwards_done() == 0, "[shard] unit '", unit.name(),
      "' is part of a step of the root '", unit.runtime()->root().name(),
      "': finish that step before calling '", root.name(), "'");
}

/// The index of the nearest unit around one: it has the longest path that the unit's begins with.
int32_t parent_of(size_t index, const std::vector<std::pair<std::string, Unit*>>& found) {
  const auto& path = found[index].first;
  int32_t parent = kNone;
  size_t longest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto& other = found[i].first;
    const bool around = i != index && (other.empty() || path.rfind(other + ".", 0) == 0);
    if (!around || (parent != kNone && other.size() <= longest)) continue;
    parent = static_cast<int32_t>(i);
    longest = other.size();
  }
  return parent;
}

/// The numbers of units that a unit is to prefetch.
std::vector<int32_t> numbers_of(const Unit& unit, const UnitSettings::Modules& modules) {
  std::vector<int32_t> numbers;
  for (const auto& module : modules) {
    const auto other = find_unit(module.lock().get());
    TORCH_CHECK_VALUE(
        other && other->number() != kNone, "[shard] unit '", unit.name(),
        "' is to prefetch a module that is no unit of this model: shard it first");
    numbers.push_back(other->number());
  }
  return numbers;
}

}  // namespace

ModelUnits::ModelUnits(Unit& root) {
  std::vector<std::pair<std::string, Unit*>> found;  // with their paths
  std::vector<std::shared_ptr<Unit>> seen;
  const auto module = module_of(root);
  for (const auto& item : module->named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const auto unit = find_unit(item.value().get());
    // A module may be registered under several names: the first is the unit's.
    if (!unit || std::find(seen.begin(), seen.end(), unit) != seen.end()) continue;
    check_free(*unit, root);
    if (unit.get() != &root) unit->set_name(item.key());
    found.emplace_back(unit.get() == &root ? "" : item.key(), unit.get());
    seen.push_back(unit);
  }
  std::sort(found.begin(), found.end(), [](const auto& one, const auto& other) {
    return one.second->settings().sequence() < other.second->settings().sequence();
  });
  TORCH_CHECK(
      found.back().second == &root, "[shard] unit '", found.back().second->name(),
      "' was sharded after '", root.name(), "', which contains it: shard inner modules first");
  for (const auto& [path, unit] : found) {
    if (unit != &root) unit->settings().check_no_root_options(root.name());
  }
  for (size_t i = 0; i < found.size(); ++i) {
    found[i].second->set_number(static_cast<int32_t>(i));
    units_.push_back(found[i].second);
    parents_.push_back(parent_of(i, found));
  }
  check_patterns_match(units_);
}

void ModelUnits::drop(const Unit& unit) noexcept {
  std::replace(units_.begin(), units_.end(), const_cast<Unit*>(&unit), static_cast<Unit*>(nullptr));
}

void ModelUnits::check_none_deleted() const {
  for (const auto* unit : units_) {
    TORCH_CHECK(unit, "[shard] a unit of this model was deleted: shard the model anew");
  }
}

void ModelUnits::keep_parameterless_units_alive() {
  const auto holder = std::find_if(
      units_.begin(), units_.end(), [](const Unit* unit) { return !unit->groups().empty(); });
  if (holder == units_.end()) return;
  for (auto* unit : units_) {
    if (!unit->groups().empty()) continue;
    (*holder)->keep_alive(unit->shared_from_this());
    registry().keep_alive(unit->shared_from_this(), false);
  }
}

std::vector<UnitSpec> ModelUnits::specs() const {
  std::vector<UnitSpec> specs;
  for (const auto* unit : units_) {
    const auto& settings = unit->settings();
    specs.push_back(unit->spec());
    const bool nests =
        std::find(parents_.begin(), parents_.end(), unit->number()) != parents_.end();
    TORCH_CHECK_VALUE(
        (settings.prefetch().empty() && settings.backward_prefetch().empty()) || !nests,
        "[shard] unit '", unit->name(),
        "' contains other units and prefetches for none: name the units to prefetch in the options "
        "of a unit that contains none");
    specs.back().prefetch = numbers_of(*unit, settings.prefetch());
    specs.back().backward_prefetch = numbers_of(*unit, settings.backward_prefetch());
  }
  return specs;
}

double ModelUnits::loss_divisor() const {
  if (root().root_options().loss != Loss::mean) return 1;
  const auto& axes = root().axes();
  const auto& mesh = root().mesh();
  return static_cast<double>(
      mesh.size(axes.inner) * (axes.outer.empty() ? 1 : mesh.size(axes.outer)));
}

std::string ModelUnits::full_name(const Unit& unit, const std::string& name) const {
  return &unit == &root() ? name : unit.name() + "." + name;
}

std::vector<bool> ModelUnits::frozen() const {
  std::vector<bool> frozen;
  for (const auto* unit : units_) unit->members().add_frozen(frozen);
  return frozen;
}

bool ModelUnits::is_reached() const {
  return std::any_of(
      units_.begin(), units_.end(), [](const Unit* unit) { return unit->members().are_reached(); });
}

void ModelUnits::check_initialised() const {
  if (root().mesh().world().device().is_meta()) return;
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) {
      const auto name = group->storage().first_uninitialised();
      TORCH_CHECK(
          !name, "[shard] parameter '", full_name(*unit, *name),
          "' was built on the meta device and has no values: call sherd::initialise(model)");
    }
  }
}

}  // namespace sherd
