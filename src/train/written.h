// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Values as a configuration has them.
namespace sherd {

std::string join(const std::vector<std::string>& words, const char* between);
std::string quoted(const std::string& text);
/// As short as reads the same again.
std::string number(double value);

std::string written(int64_t value);
std::string written(bool value);
std::string written(double value);
std::string written(const std::string& value);
std::string written(const std::vector<double>& values);
/// Nothing where there is none.
template <class T>
std::string written(const std::optional<T>& value) {
  return value ? written(*value) : "";
}

}  // namespace sherd
