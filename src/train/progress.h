// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace sherd {

/// Shows the progress of a run: on a terminal a bar in one line that is rewritten, otherwise a line
/// per step.
class Progress {
 public:
  /// `columns`: width of the terminal; 0: no terminal.
  Progress(int64_t steps, int64_t columns) : steps_(steps), columns_(columns) {}

  void show(int64_t step, const std::string& line);
  /// Prints a line that stays.
  void say(const std::string& line);
  /// Returns the text for a step; public for tests.
  std::string text(int64_t step, const std::string& line) const;

 private:
  int64_t steps_;
  int64_t columns_;
};

}  // namespace sherd
