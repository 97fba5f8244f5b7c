// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"

namespace sherd::app {

/// `sherd bench --peers --table`.
class BenchCommand {
 public:
  explicit BenchCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  ///< the exit code

 private:
  std::vector<BenchVariant> chosen() const;
  void run_here() const;
  int run_each() const;
  std::vector<std::string> words_for_sherd(const BenchVariant& variant) const;
  std::vector<std::string> words_for_peer(const BenchVariant& variant, double load) const;
  bool runs_peer(const BenchVariant& variant) const;
  std::string whole_command() const;

  CLI::App* command_;
  std::vector<std::string> only_;
  std::string network_;
  std::string mamba_ssm_;
  std::string device_ = "auto";
  std::string json_;
  int64_t steps_ = 10;
  std::optional<double> load_;
  bool quick_ = false;
  bool peers_ = false;
  bool table_ = false;
  bool here_ = false;
};

}  // namespace sherd::app
