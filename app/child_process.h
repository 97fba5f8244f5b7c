// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd::app {

/// The stream of this process that a program's standard output is written to.
enum class Output : uint8_t { standard_output, standard_error };

/// Runs a program, given with its arguments, and blocks until it ends. Returns its exit code; 128
/// and the signal's number if a signal ended it. Throws if it can't be started. A name without a
/// slash is looked for on PATH.
int run_program(const std::vector<std::string>& words, Output output = Output::standard_output);

/// Blocks until a child process ends and returns its exit code as above.
int exit_code_of_child(int process);

}  // namespace sherd::app
