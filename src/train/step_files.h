// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "sherd/comm/world.h"
#include "train/event_file.h"
#include "train/metrics.h"
#include "train/results.h"

namespace sherd {

/// The metrics of a run's steps. The first rank also writes them to metrics.jsonl and, if
/// configured, to TensorBoard's event file.
class StepFiles {
 public:
  /// `results`: null on all ranks but the first. Keeps the steps up to `step`, from which the run
  /// continues, and writes the configuration.
  StepFiles(const Results* results, const TrainSection& train, int64_t step);

  const std::vector<StepMetrics>& steps() const { return steps_; }
  void add(const StepMetrics& metrics);
  /// Adds the validation loss of the last step.
  void add_validation(double loss);
  /// Returns the lowest validation loss of the steps if a folder, with what was saved then, is
  /// there; else infinity. The same on all ranks. Collective.
  double lowest_validation(const World& world, const std::string& folder) const;
  /// Returns a warning if files of an earlier run could not be read; otherwise empty.
  const std::string& warning() const { return warning_; }

 private:
  std::vector<StepMetrics> steps_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  std::string warning_;
};

}  // namespace sherd
