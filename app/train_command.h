// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "restarts.h"

namespace sherd::app {

/// `sherd train FILE`.
class TrainCommand {
 public:
  explicit TrainCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  /// Runs the command and returns its exit code. Starts ranks if several are configured and no
  /// launcher has.
  int run() const;

 private:
  CLI::App* command_;
  std::string file_;
  std::vector<std::string> overrides_;
  std::optional<int64_t> ranks_;
  Restarts restarts_;
};

}  // namespace sherd::app
