// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "folder_arguments.h"
#include "train/evaluate.h"

namespace sherd::app {

/// `sherd eval FOLDER --data FILE`.
class EvalCommand {
 public:
  explicit EvalCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run(char** arguments) const;  ///< the exit code

 private:
  CLI::App* command_;
  FolderArguments folder_;
  EvaluateOptions options_;
  bool json_ = false;
};

}  // namespace sherd::app
