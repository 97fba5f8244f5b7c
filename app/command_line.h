// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sherd::app {

/// Runs `sherd`'s command line, the program's name first, and returns the exit code.
int run_command_line(int argc, char** argv);

}  // namespace sherd::app
