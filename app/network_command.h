// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace sherd::app {

/// `sherd network [--ranks N] [--out FILE]`.
class NetworkCommand {
 public:
  explicit NetworkCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  /// Runs the command and returns its exit code. Starts ranks if --ranks is above 1 and no launcher
  /// has.
  int run(char** arguments) const;

 private:
  void measure() const;

  CLI::App* command_;
  std::optional<int64_t> ranks_;
  std::string out_;
};

}  // namespace sherd::app
