// SPDX-License-Identifier: Apache-2.0
#include "configuration/to_toml.h"

#include <array>
#include <charconv>

namespace sherd {

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string number(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string to_toml(int64_t value) {
  return std::to_string(value);
}
std::string to_toml(bool value) {
  return value ? "true" : "false";
}
std::string to_toml(double value) {
  return number(value);
}
std::string to_toml(const std::string& value) {
  return quoted(value);
}
std::string to_toml(const std::vector<double>& values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(number(value));
  return "[" + join(words, ", ") + "]";
}
std::string to_toml(const std::vector<std::string>& values) {
  std::vector<std::string> words;
  for (const auto& value : values) words.push_back(quoted(value));
  return "[" + join(words, ", ") + "]";
}

}  // namespace sherd
