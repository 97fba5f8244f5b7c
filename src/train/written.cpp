// SPDX-License-Identifier: Apache-2.0
#include "train/written.h"

#include <iomanip>
#include <sstream>

namespace sherd {

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string number(double value) {
  std::ostringstream out;
  out << std::setprecision(17) << value;
  const auto text = out.str();
  std::ostringstream brief;
  brief << value;
  return std::stod(brief.str()) == value ? brief.str() : text;
}

std::string written(int64_t value) {
  return std::to_string(value);
}
std::string written(bool value) {
  return value ? "true" : "false";
}
std::string written(double value) {
  return number(value);
}
std::string written(const std::string& value) {
  return quoted(value);
}
std::string written(const std::vector<double>& values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(number(value));
  return "[" + join(words, ", ") + "]";
}

}  // namespace sherd
