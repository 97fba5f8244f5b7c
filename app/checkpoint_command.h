// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace sherd::app {

/// `sherd checkpoint show|verify|diff|import`.
class CheckpointCommand {
 public:
  explicit CheckpointCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  ///< the exit code

 private:
  int compare() const;
  int import() const;

  CLI::App* command_;
  CLI::App* show_;
  CLI::App* verify_;
  CLI::App* diff_;
  CLI::App* import_;
  std::string folder_;
  std::string other_;
  std::optional<std::string> config_;
  std::optional<int64_t> samples_;
};

}  // namespace sherd::app
