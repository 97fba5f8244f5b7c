// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "sherd/comm/world.h"
#include "train/metrics.h"

namespace sherd {

/// Measures how long this rank computes in each step, and finds a rank that stays behind the
/// others. On CPUs: the host does not wait for a GPU's collectives, so its times say nothing.
class Stragglers {
 public:
  static constexpr size_t kSteps = 10;       ///< over which a mean is taken
  static constexpr int kConfirmations = 5;   ///< steps in which it names the same rank
  static constexpr double kBehind = 1.2;     ///< times the fastest rank's mean
  static constexpr int64_t kSilence = 1000;  ///< steps until a rank is named again

  /// Collective; blocks.
  explicit Stragglers(const World& world);
  /// Returns whether there is something to compare.
  bool measures() const { return measures_; }

  void begin_step();
  /// Ends the step; returns the seconds in which this rank did not wait for others.
  double end_step();
  /// Returns the mean of the last steps; 0 before there are enough.
  double mean() const;
  /// Takes the means of all ranks after a step. Returns a warning if one has stayed behind, else
  /// an empty text.
  std::string judge(const RankSpeeds& means, int64_t step);

  const std::vector<std::string>& hosts() const { return hosts_; }  ///< by rank

 private:
  bool measures_;
  std::vector<std::string> hosts_;  // by rank
  std::chrono::steady_clock::time_point begin_;
  int64_t waited_before_ = 0;
  bool warmed_up_ = false;
  std::deque<double> last_;
  int64_t suspect_ = -1;
  int confirmations_ = 0;
  std::map<int64_t, int64_t> named_;  // by rank: in which step
};

}  // namespace sherd
