// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// Shows how far a run is: on a terminal a bar in one line that changes, else a line per step.
class Progress {
 public:
  /// `columns`: of the terminal; 0: there is none.
  Progress(int64_t steps, int64_t columns) : steps_(steps), columns_(columns) {}

  void show(int64_t step, const std::string& line);
  /// A line that stays.
  void say(const std::string& line);
  /// What to write for a step: exposed for tests.
  std::string text(int64_t step, const std::string& line) const;

 private:
  int64_t steps_;
  int64_t columns_;
};

}  // namespace sherd
