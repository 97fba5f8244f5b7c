// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_stages.h"

#include "checkpoint/collective.h"

namespace sherd {

SaveStages::SaveStages(
    const torch::nn::Module& model,
    const std::string& folder,
    const SaveOptions& options,
    const char* caller)
    : model_(model, caller), unfinished_(folder), options_(options) {
  model_.check_between_steps(caller);
  model_.wait_until_idle(caller);
  model_.check_initialised();
}

bool SaveStages::is_first_rank() const {
  return model_.world().rank() == 0;
}

std::vector<StoredParameter> SaveStages::prepare(
    const torch::nn::Module& model, const AdamW* optimizer, const Reserve& reserve) {
  std::vector<StoredParameter> parameters;
  on_all_ranks(model_, [&] {
    parameters = stored_parameters(model, model_, optimizer, options_.slices, Purpose::save);
    plan_ = plan_files(parameters, options_);
    fp8_ = Fp8Export(parameters, options_.export_fp8);
    progress_ = optimizer ? std::optional(optimizer->progress()) : std::nullopt;
    if (reserve) reserve(parameters);
    if (is_first_rank()) unfinished_.make();
  });
  fp8_.exchange(model_.world());
  return parameters;
}

void SaveStages::write_part(const std::vector<StoredParameter>& parameters) const {
  sherd::write_part(unfinished_, parameters, plan_, fp8_, model_.world().rank());
}

void SaveStages::write_state() const {
  if (!is_first_rank()) return;
  sherd::write_state(unfinished_, plan_, model_.world().size(), progress_, options_);
  unfinished_.finish();
}

}  // namespace sherd
