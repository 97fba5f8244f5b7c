// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "folder_arguments.h"
#include "train/generate.h"

namespace sherd::app {

/// `sherd generate FOLDER --prompt TEXT`.
class GenerateCommand {
 public:
  explicit GenerateCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run(char** arguments) const;  ///< the exit code

 private:
  GenerateOptions options() const;

  CLI::App* command_;
  FolderArguments folder_;
  GenerateOptions options_;
  bool no_prefix_ = false;
  bool json_ = false;
};

}  // namespace sherd::app
