// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

namespace sherd::app {

/// Returns a check that refuses whole numbers below 1. What is no number, CLI11 refuses itself.
inline CLI::Validator at_least_one() {
  return CLI::Validator(
      [](const std::string& text) {
        char* end = nullptr;
        const auto number = std::strtoll(text.c_str(), &end, 10);
        const bool refused = *end == '\0' && number < 1;
        return refused ? "it must be at least 1, not " + text : std::string();
      },
      "POSITIVE");
}

}  // namespace sherd::app
