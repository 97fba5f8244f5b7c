// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>

#include "train/folder_model.h"

namespace sherd::app {

/// The arguments of commands that run the model of a Hugging Face folder.
struct FolderArguments {
  /// Adds them to a command.
  void add_to(CLI::App& command);
  /// Runs `command` on this rank and returns its exit code. Starts ranks if several are wanted and
  /// no launcher has, after `check` has found nothing wrong.
  int run(char** arguments, const std::function<void()>& check, const std::function<int()>& command)
      const;

  FolderOptions options{};
  std::optional<int64_t> ranks{};
};

}  // namespace sherd::app
