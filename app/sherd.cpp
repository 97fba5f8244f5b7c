// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

int main(int argc, char** argv) {
  return sherd::app::run_command_line(argc, argv);
}
