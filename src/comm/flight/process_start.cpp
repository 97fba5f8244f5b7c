// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/process_start.h"

#include <fstream>
#include <sstream>
#include <string>

namespace sherd {
namespace {

/// Returns the fields of /proc/PID/stat behind the program's name, which may have spaces.
std::istringstream fields_of_process(int64_t process) {
  std::string line;
  std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), line);
  const auto end = line.rfind(')');
  return std::istringstream(end == std::string::npos ? "" : line.substr(end + 1));
}

}  // namespace

int64_t start_of_process(int64_t process) {
  auto fields = fields_of_process(process);
  std::string field;
  for (int i = 0; i < 19; ++i) fields >> field;
  int64_t start = 0;
  fields >> start;
  return start;
}

char state_of_process(int64_t process) {
  char state = 0;
  fields_of_process(process) >> state;
  return state;
}

}  // namespace sherd
