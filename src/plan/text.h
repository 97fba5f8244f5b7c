// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace sherd {

/// Appends what a stream would print. Streams are slow to make, and programs name thousands of
/// things: so words and whole numbers are written without one.
template <class T>
void append_text(std::string& out, const T& value) {
  static_assert(!std::is_function_v<T>, "a manipulator such as std::hex would change nothing");
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out += std::string_view(value);
  } else if constexpr (std::integral<T> && sizeof(T) > 2) {
    char digits[24];
    out.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  } else {
    std::ostringstream stream;
    stream << value;
    out += stream.str();
  }
}

/// Returns the arguments, printed one after another.
template <class... Args>
std::string text(const Args&... args) {
  std::string result;
  (append_text(result, args), ...);
  return result;
}

}  // namespace sherd
