// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/late_options.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "shard/registry.h"
#include "shard/runtime/runtime.h"

namespace sherd {

void change_options(ModuleRef module, const LateOptions& options) {
  const auto unit = find_unit(module.get());
  TORCH_CHECK_VALUE(
      unit, "[shard] change_options is called with '", module->name(), "', which is not a unit");
  const auto& runtime = unit->runtime();
  if (runtime) {
    TORCH_CHECK(
        !options.root, "[shard] options of the root '", unit->name(),
        "' after the model's first use: give them before");
    runtime->check_between_passes("change_options");
    runtime->check_between_steps("change_options");
  }
  auto changed = unit->settings();
  changed.change(options);
  const auto before = unit->settings();
  unit->set_settings(std::move(changed));
  if (!runtime) return;
  try {
    runtime->rebuild();
  } catch (...) {
    unit->set_settings(before);
    throw;
  }
}

}  // namespace sherd
