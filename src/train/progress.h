// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "train/step_line.h"

namespace sherd {

/// Shows the progress of a run: on a terminal a bar in one line that is rewritten, below the lines
/// that stay; otherwise a line per step.
class Progress {
 public:
  /// `columns` returns the width of the terminal, which may change; 0: no terminal.
  Progress(int64_t steps, std::function<int64_t()> columns, std::ostream& out);
  /// Leaves the bar as a line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t step, const std::vector<LineField>& fields);
  /// Prints a line that stays.
  void say(const std::string& line);
  /// Makes the bar a line that stays.
  void leave_bar();

 private:
  std::string cleared(int64_t columns) const;

  int64_t steps_;
  std::function<int64_t()> columns_;
  std::ostream& out_;
  std::string bar_;  // that the terminal shows now
};

}  // namespace sherd
