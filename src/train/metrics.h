// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// What is known of a step once it is done.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0;       ///< mean over all tokens of the global batch, before the update
  double grad_norm = 0;  ///< over all parameters and ranks, before clipping
  double lr = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;  ///< of all ranks
  double tflops = 0;             ///< per rank
  int64_t planned_bytes = 0;     ///< by Sherd, on the fullest rank
  int64_t peak_bytes = 0;
  std::optional<double> val_loss{};

  /// One line of JSON.
  std::string json() const;
};

/// For a person: the step's numbers in one line, with what is left to do.
std::string line_of(
    const StepMetrics& metrics, int64_t steps, double peak_matmul_tflops, double seconds_left);

std::string duration_text(double seconds);

/// `metrics.jsonl`: a line per step, on the disk when add() returns.
class MetricsFile {
 public:
  /// Keeps the lines of the steps up to `step`, which a run goes on from; 0: begins anew. Lines
  /// that are no step's are put into FILE.unreadable.
  MetricsFile(const std::string& path, int64_t step);
  const std::vector<StepMetrics>& kept() const { return kept_; }
  /// Lines that could not be read; a last one that was cut short by a crash is none of them.
  int64_t unreadable() const { return unreadable_; }
  std::string unreadable_path() const { return path_ + ".unreadable"; }
  void add(const StepMetrics& metrics);
  /// The last step's line once more, with what was found out after it was added: val_loss.
  void amend(const StepMetrics& metrics);

 private:
  std::string path_;
  std::vector<StepMetrics> kept_;
  int64_t unreadable_ = 0;
  std::ofstream file_;
  std::streamoff last_ = 0;  // where the last line begins
};

}  // namespace sherd
