// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace sherd::app {

constexpr int kFailed = 1;   ///< exit code of a command that failed
constexpr int kRefused = 2;  ///< exit code for wrong arguments, configurations and input files
/// Exit code of a training whose step was not finite: started again, it would come to the same.
constexpr int kNotFinite = 3;

/// Runs a command and returns its exit code. If it throws, prints the error to standard error, with
/// the rank where there are several, and returns kRefused for an error of the caller
/// (ConfigurationError, c10::ValueError), kNotFinite for a NotFiniteError, `failed` for any other.
/// A wrong configuration is printed by rank 0 alone: all ranks have read the same.
int exit_code_of(const std::function<int()>& command, int failed = kFailed);

}  // namespace sherd::app
