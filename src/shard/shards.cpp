// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/shards.h"

#include <c10/util/Exception.h>

#include "shard/registry.h"
#include "shard/runtime/runtime.h"

namespace sherd {

std::vector<Shard> shards(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "shards");
  std::vector<Shard> result;
  for (const auto& one : runtime->shards()) {
    result.push_back({one.name, one.shape, one.cut, one.trainable, one.begin, one.main});
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
