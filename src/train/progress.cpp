// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <utility>

#include "train/train.h"

namespace sherd {
namespace {

constexpr int64_t kUsualColumns = 80;
constexpr int64_t kWide = 100;  // columns from which on the bar is long

int64_t columns_of_file(int file) {
  struct winsize size {};
  const bool known = ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

}  // namespace

// The width is asked for anew at each call, which a signal for its changes would not make simpler:
// it reaches the process that has the terminal, and not the rank that prints.
int64_t terminal_columns() {
  if (const auto* told = std::getenv("SHERD_TERMINAL")) {
    if (*told != '/') return std::strtol(told, nullptr, 10);
    static const int terminal = open(told, O_RDONLY | O_NOCTTY | O_CLOEXEC);
    return columns_of_file(terminal);
  }
  // A launcher gives its ranks a terminal of their own, wherever their output goes.
  for (const char* launcher : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"}) {
    if (std::getenv(launcher)) return 0;
  }
  const auto* kind = std::getenv("TERM");
  if (!isatty(STDOUT_FILENO) || !kind || std::string(kind) == "dumb") return 0;
  return columns_of_file(STDOUT_FILENO);
}

std::string terminal_for_ranks() {
  const auto columns = terminal_columns();
  const auto* name = columns == 0 ? nullptr : ttyname(STDOUT_FILENO);
  return name ? name : std::to_string(columns);
}

Progress::Progress(int64_t steps, std::function<int64_t()> columns, std::ostream& out)
    : steps_(steps), columns_(std::move(columns)), out_(out) {}

Progress::~Progress() {
  leave_bar();
}

/// What removes the bar. On a terminal that became narrower it has several lines now.
std::string Progress::cleared(int64_t columns) const {
  const int64_t more = bar_.empty() ? 0 : (width_of(bar_) - 1) / columns;
  if (more == 0) return "\r\033[K";
  return "\r\033[" + std::to_string(more) + "A\033[J";
}

void Progress::show(int64_t step, const std::vector<LineField>& fields) {
  const int64_t columns = columns_();
  if (columns == 0) {
    out_ << whole_line(fields) << std::endl;
    return;
  }
  out_ << cleared(columns);
  const int64_t length = columns < kWide ? 10 : 20;
  const int64_t full = step * length / steps_;
  const auto bar = "[" + std::string(static_cast<size_t>(full), '#') +
                   std::string(static_cast<size_t>(length - full), '.') + "] ";
  const int64_t room = std::max<int64_t>(1, columns - 1);
  // A terminal without room for both has the numbers.
  const bool narrow = room < 4 * length;
  bar_ = narrow ? fitted(fields, room) : bar + fitted(fields, room - std::ssize(bar));
  out_ << bar_ << std::flush;
  if (step == steps_) leave_bar();
}

void Progress::say(const std::string& line) {
  const int64_t columns = columns_();
  if (columns > 0) out_ << cleared(columns);
  out_ << line << '\n' << bar_ << std::flush;
}

void Progress::leave_bar() {
  if (!bar_.empty()) out_ << std::endl;
  bar_.clear();
}

}  // namespace sherd
