// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace sherd::app {

/// `sherd rehearse FILE --world 64 --network FILE`.
class RehearseCommand {
 public:
  explicit RehearseCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  ///< the exit code

 private:
  CLI::App* command_;
  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<int64_t> worlds_{8};
  std::string network_;
  std::string times_;
  std::string html_;
  std::string trace_;
  std::string profile_;
  int64_t steps_ = 10;
  double load_ = 0;
  bool json_ = false;
};

}  // namespace sherd::app
