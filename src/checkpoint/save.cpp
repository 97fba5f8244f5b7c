// SPDX-License-Identifier: Apache-2.0
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "checkpoint/collective.h"
#include "checkpoint/writer.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

void save(
    const torch::nn::Module& model,
    const AdamW* optimizer,
    const std::string& folder,
    const SaveOptions& options) {
  const ShardedModel sharded(model, "save");
  sharded.check_between_steps("save");
  sharded.wait_until_idle("save");
  sharded.check_initialised();
  const auto& world = sharded.world();
  const UnfinishedFolder unfinished(folder);
  std::vector<StoredParameter> parameters;
  FilePlan plan;
  on_all_ranks(sharded, [&] {
    parameters = stored_parameters(model, sharded, optimizer, options.slices, Purpose::save);
    plan = plan_files(parameters, options.export_dtype);
    if (world.rank() == 0) unfinished.make();
  });
  try {
    const auto progress = optimizer ? std::optional(optimizer->progress()) : std::nullopt;
    on_all_ranks_for_long(sharded, [&] { write_part(unfinished, parameters, plan, world.rank()); });
    on_all_ranks_for_long(sharded, [&] {
      if (world.rank() != 0) return;
      write_state(unfinished, plan, world.size(), progress, options);
      unfinished.finish();
    });
  } catch (const c10::Error&) {
    if (world.rank() == 0) unfinished.discard();  // nobody writes any more
    throw;
  }
}

}  // namespace sherd
