// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "data/tokenizer/tokenize.h"

namespace sherd::app {

/// `sherd tokenize --tokenizer FILE --out FILE TEXT...`.
class TokenizeCommand {
 public:
  explicit TokenizeCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  ///< the exit code

 private:
  CLI::App* command_;
  TokenizeOptions options_;
  std::optional<std::string> template_;
};

}  // namespace sherd::app
