// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/collective.h"
#include "checkpoint/save_stages.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

void save(
    ModuleRef model,
    const AdamW* optimizer,
    const std::string& folder,
    const SaveOptions& options) {
  SaveStages stages(*model, folder, options, "save");
  const auto parameters = stages.prepare(*model, optimizer);
  stages.discard_on_error([&] {
    on_all_ranks_for_long(stages.model(), [&] { stages.write_part(parameters); });
    on_all_ranks_for_long(stages.model(), [&] { stages.write_state(); });
  });
}

}  // namespace sherd
