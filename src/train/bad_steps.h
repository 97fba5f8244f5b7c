// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "configuration/configuration.h"

namespace sherd {

/// The decisions about steps whose gradients are not finite, or explode (train.on_bad_step,
/// train.bad_norm). Equal on all ranks.
class BadSteps {
 public:
  static constexpr int64_t kMostInARow = 10;  ///< steps that are skipped; one more ends the run
  static constexpr int64_t kMostRewinds = 3;  ///< to one checkpoint; one more ends the run
  static constexpr int64_t kLeastNorms = 10;  ///< good steps before a norm can be too large

  /// Samples from a position on, up to another.
  struct Samples {
    int64_t from = 0;
    int64_t to = 0;
  };

  explicit BadSteps(const TrainSection& train) : train_(train) {}

  bool stop() const { return train_.on_bad_step == "stop"; }
  bool rewind() const { return train_.on_bad_step == "rewind"; }

  /// Returns whether a step with this norm is bad. To be called once for each step, in their order.
  bool is_bad(double norm);
  /// Records a step whose update is left out. Returns false if there were too many in a row.
  bool skip();
  /// Records that the run goes back to a checkpoint that has trained on `trained` samples, and
  /// leaves out some samples after those. Returns false if it has done so too often.
  bool leave_out(const Samples& samples, int64_t trained);
  /// Returns where the next step begins: `position`, or after what is left out there.
  int64_t next_position(int64_t position) const;

  /// The decisions as numbers of a checkpoint's state.
  std::map<std::string, int64_t> numbers() const;
  void restore(const std::map<std::string, int64_t>& numbers);

 private:
  TrainSection train_;
  int64_t skipped_ = 0;
  int64_t in_a_row_ = 0;
  std::vector<Samples> left_out_;
  double norms_ = 0;  // sum over good steps of this process
  int64_t good_ = 0;
};

}  // namespace sherd
