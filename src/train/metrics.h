// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// How long ranks computed: the slowest, for which the others wait, and the fastest.
struct RankSpeeds {
  int64_t slowest_rank = 0;
  double slowest = 0;  ///< seconds
  double fastest = 0;  ///< seconds
};

/// The numbers of a finished step.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;       ///< mean over all tokens of the global batch, before the update
  double grad_norm = 0;  ///< over all parameters and ranks, before clipping
  double lr = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;  ///< of all ranks
  double tflops = 0;             ///< per rank
  int64_t tokens = 0;            ///< that the run has trained on, with those of this step
  int64_t planned_bytes = 0;     ///< on the rank with most
  int64_t peak_bytes = 0;
  std::optional<double> val_loss{};
  bool resumed = false;               ///< the first step after a checkpoint was loaded
  std::optional<RankSpeeds> ranks{};  ///< of several CPU ranks

  /// Returns one line of JSON.
  std::string json() const;
};

std::string duration_text(double seconds);

/// The file `metrics.jsonl`: a line per step, flushed when add() returns.
class MetricsFile {
 public:
  /// Keeps the lines of the steps up to `step`, from which a run continues; 0: starts anew. Lines
  /// that can't be read are moved to FILE.unreadable.
  MetricsFile(const std::string& path, int64_t step);
  const std::vector<StepMetrics>& kept() const { return kept_; }
  /// Returns the number of lines that could not be read, without a last one that a crash cut short.
  int64_t unreadable() const { return unreadable_; }
  std::string unreadable_path() const { return path_ + ".unreadable"; }
  void add(const StepMetrics& metrics);
  /// Replaces the last step's line, to add val_loss.
  void amend(const StepMetrics& metrics);

 private:
  std::string path_;
  std::vector<StepMetrics> kept_;
  int64_t unreadable_ = 0;
  std::ofstream file_;
  std::streamoff last_ = 0;  // where the last line begins
};

}  // namespace sherd
