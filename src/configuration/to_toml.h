// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/quoted_text.h"

// Values as TOML.
namespace sherd {

std::string join(const std::vector<std::string>& words, const char* between);
/// Returns the shortest text that reads back as the same number.
std::string number(double value);

std::string to_toml(int64_t value);
std::string to_toml(bool value);
std::string to_toml(double value);
std::string to_toml(const std::string& value);
std::string to_toml(const std::vector<double>& values);
std::string to_toml(const std::vector<std::string>& values);
/// Returns an empty text if there is no value.
template <class T>
std::string to_toml(const std::optional<T>& value) {
  return value ? to_toml(*value) : "";
}

}  // namespace sherd
