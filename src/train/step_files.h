// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "train/event_file.h"
#include "train/metrics.h"
#include "train/results.h"

namespace sherd {

/// The steps of a run, which the first rank also writes down: metrics.jsonl and, where asked for,
/// TensorBoard's events.
class StepFiles {
 public:
  /// `results`: null on all ranks but the first. Steps up to `step`, which the run goes on from,
  /// are kept there; the configuration is written, too.
  StepFiles(const Results* results, const TrainSection& train, int64_t step);

  const std::vector<StepMetrics>& steps() const { return steps_; }
  void add(const StepMetrics& metrics);
  /// Of the last step.
  void add_validation(double loss);
  /// What is wrong with what an earlier run has written, in words; else empty.
  const std::string& warning() const { return warning_; }

 private:
  std::vector<StepMetrics> steps_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  std::string warning_;
};

}  // namespace sherd
