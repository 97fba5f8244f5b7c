// SPDX-License-Identifier: Apache-2.0
#include "train/step_files.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>

#include "data/across_ranks.h"

namespace sherd {

StepFiles::StepFiles(const Results* results, const TrainSection& train, int64_t step) {
  if (!results) return;
  results->write_configuration(step);
  const auto path = results->path("metrics.jsonl");
  metrics_.emplace(path, step);
  if (const auto lines = metrics_->unreadable(); lines > 0) {
    warning_ = path + ": " + std::to_string(lines) + (lines == 1 ? " line" : " lines") +
               " can't be read: moved to " + metrics_->unreadable_path();
  }
  steps_ = metrics_->kept();
  if (train.tensorboard) events_.emplace(train.out);
}

void StepFiles::add(const StepMetrics& metrics) {
  if (metrics_) metrics_->add(metrics);
  if (events_) events_->add(metrics);
  steps_.push_back(metrics);
}

void StepFiles::add_validation(double loss) {
  if (!metrics_) return;
  auto& metrics = steps_.back();
  metrics.val_loss = loss;
  metrics_->amend(metrics);
  if (events_) events_->add(metrics.step, {{"validation/loss", loss}});
}

double StepFiles::lowest_validation(const World& world, const std::string& folder) const {
  double lowest = INFINITY;
  if (metrics_ && std::filesystem::is_directory(folder)) {
    for (const auto& one : steps_) lowest = std::min(lowest, one.val_loss.value_or(lowest));
  }
  const auto bits = numbers_of_first_rank(world, {std::bit_cast<int64_t>(lowest)});
  return std::bit_cast<double>(bits[0]);
}

}  // namespace sherd
