// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "train/train.h"

namespace sherd {
namespace {

constexpr const char* kClear = "\r\033[K";
constexpr int64_t kBar = 20;  // columns

}  // namespace

int64_t terminal_columns() {
  if (const auto* told = std::getenv("SHERD_TERMINAL")) return std::strtol(told, nullptr, 10);
  // A launcher gives its ranks a terminal of their own, wherever their output goes.
  for (const char* launcher : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"}) {
    if (std::getenv(launcher)) return 0;
  }
  const auto* kind = std::getenv("TERM");
  if (!isatty(STDOUT_FILENO) || !kind || std::string(kind) == "dumb") return 0;
  struct winsize size {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string Progress::text(int64_t step, const std::string& line) const {
  if (columns_ == 0) return line + "\n";
  const int64_t full = step * kBar / steps_;
  std::string bar = "[" + std::string(static_cast<size_t>(full), '#') +
                    std::string(static_cast<size_t>(kBar - full), '.') + "] ";
  const auto room = static_cast<size_t>(std::max<int64_t>(1, columns_ - 1));
  return kClear + (bar + line).substr(0, room) + (step == steps_ ? "\n" : "");
}

void Progress::show(int64_t step, const std::string& line) {
  std::cout << text(step, line) << std::flush;
}

void Progress::say(const std::string& line) {
  std::cout << (columns_ == 0 ? "" : kClear) << line << std::endl;
}

}  // namespace sherd
