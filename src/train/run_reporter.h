// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "forecast/ledger.h"
#include "train/event_command.h"
#include "train/metrics.h"
#include "train/report.h"
#include "train/results.h"

namespace sherd {

/// Tells others about a run while it goes on: the command train.on_event and the readers of
/// report.html. One process has it, the first rank.
class RunReporter {
 public:
  /// Starts the command, if there is one.
  RunReporter(const Configuration& configuration, const Results& results, ReportFacts facts);

  /// Says that the run has ended with an error, unless ended() was called.
  ~RunReporter();
  RunReporter(const RunReporter&) = delete;
  RunReporter& operator=(const RunReporter&) = delete;

  void started(int64_t step);
  void logged(const StepMetrics& metrics);
  void validated(int64_t step, double loss, bool best);
  void saved(const std::string& folder);
  /// `reason`: "finished", "stopped" or "not finite".
  void ended(int64_t step, const std::string& reason);

  /// Rewrites report.html if the last time was more than kEvery seconds ago. Returns an error that
  /// the training goes on after; otherwise empty.
  std::string rewrite(const std::vector<StepMetrics>& steps, const Ledger& ledger);
  /// Writes the report of a run that has ended.
  void write(const std::vector<StepMetrics>& steps, const Ledger& ledger);

  static constexpr double kEvery = 10;

 private:
  void write_page(const std::vector<StepMetrics>& steps, const Ledger& ledger, bool running);

  const Configuration& configuration_;
  const Results& results_;
  ReportFacts facts_;
  std::optional<EventCommand> command_;
  std::optional<std::chrono::steady_clock::time_point> written_;
  bool ended_ = false;
  bool failed_ = false;  // to rewrite the page
};

}  // namespace sherd
