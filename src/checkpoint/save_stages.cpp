// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_stages.h"

#include "checkpoint/collective.h"

namespace sherd {

SaveStages::SaveStages(
    const torch::nn::Module& model,
    const std::string& folder,
    const SaveOptions& options,
    const char* caller)
    : runtime_(Runtime::of_model(model, caller)), unfinished_(folder), options_(options) {
  runtime_->check_between_steps(caller);
  runtime_->wait_until_idle(caller);
  runtime_->units().check_initialised();
}

bool SaveStages::is_first_rank() const {
  return runtime_->world().rank() == 0;
}

std::vector<StoredParameter> SaveStages::prepare(
    const torch::nn::Module& model, const AdamW* optimizer, const Reserve& reserve) {
  std::vector<StoredParameter> parameters;
  on_all_ranks(*runtime_, [&] {
    parameters = stored_parameters(model, *runtime_, optimizer, options_.slices, Purpose::save);
    plan_ = plan_files(parameters, options_.export_dtype);
    progress_ = optimizer ? std::optional(optimizer->progress()) : std::nullopt;
    if (reserve) reserve(parameters);
    if (is_first_rank()) unfinished_.make();
  });
  return parameters;
}

void SaveStages::write_part(const std::vector<StoredParameter>& parameters) const {
  sherd::write_part(unfinished_, parameters, plan_, runtime_->world().rank());
}

void SaveStages::write_state() const {
  if (!is_first_rank()) return;
  sherd::write_state(unfinished_, plan_, runtime_->world().size(), progress_, options_);
  unfinished_.finish();
}

}  // namespace sherd
