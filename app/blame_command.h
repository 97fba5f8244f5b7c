// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace sherd::app {

/// `sherd blame`.
class BlameCommand {
 public:
  explicit BlameCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  ///< the exit code

 private:
  CLI::App* command_;
  std::string folder_;
  std::optional<std::string> trace_;
  double seconds_ = 10;
};

}  // namespace sherd::app
