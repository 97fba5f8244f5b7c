// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

namespace sherd::app {

/// Returns a check that refuses what is no whole number, and whole numbers below 1.
inline CLI::Validator at_least_one() {
  return CLI::Validator(
      [](const std::string& text) {
        char* end = nullptr;
        const auto number = std::strtoll(text.c_str(), &end, 10);
        if (text.empty() || *end != '\0') return "it must be a whole number, not " + text;
        return number < 1 ? "it must be at least 1, not " + text : std::string();
      },
      "POSITIVE");
}

}  // namespace sherd::app
