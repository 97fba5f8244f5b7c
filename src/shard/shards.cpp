// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/shards.h"

#include <c10/util/Exception.h>

#include <set>

#include "shard/registry.h"
#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

std::set<std::string> names_without_values(const ModelUnits& units) {
  std::set<std::string> result;
  for (const auto* unit : units) {
    for (const auto& group : unit->groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        if (!group->storage().is_uninitialised(i)) continue;
        result.insert(units.full_name(*unit, group->name(i)));
      }
    }
  }
  return result;
}

}  // namespace

std::vector<Shard> shards(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "shards");
  const auto without_values = names_without_values(runtime->units());
  std::vector<Shard> result;
  for (const auto& one : runtime->shards()) {
    result.push_back(
        {one.name, one.shape, one.cut, one.trainable, one.counted, one.begin, one.main,
         !without_values.contains(one.name)});
  }
  return result;
}

std::shared_ptr<const void> keep_unit(ModuleRef module) {
  auto unit = find_unit(module.get());
  TORCH_CHECK_VALUE(
      unit, "[shard] keep_unit is called with '", module->name(),
      "', which is not a unit: call sherd::fully_shard first");
  return unit;
}

}  // namespace sherd
