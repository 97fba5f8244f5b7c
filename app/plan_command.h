// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "forecast/plan.h"

namespace sherd::app {

/// `sherd plan FILE [FILE]`.
class PlanCommand {
 public:
  explicit PlanCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  ///< the exit code

 private:
  int search() const;

  CLI::App* command_;
  std::vector<std::string> files_;
  std::vector<std::string> overrides_;
  int64_t world_ = 0;
  std::vector<int64_t> worlds_;
  std::string network_;
  std::string times_;
  std::string html_;
  std::string trace_;
  bool search_ = false;
  int64_t sequences_ = 0;
  bool program_ = false;
  bool json_ = false;
};

}  // namespace sherd::app
