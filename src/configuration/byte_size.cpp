// SPDX-License-Identifier: Apache-2.0
#include "configuration/byte_size.h"

#include <c10/util/Exception.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <system_error>

namespace sherd {
namespace {

struct ByteUnit {
  std::string_view name;
  double bytes;
};

constexpr double kKibi = 1024;
// As they are written: "Gb" would be bits.
constexpr std::array<ByteUnit, 11> kUnits{{
    {"", 1},
    {"B", 1},
    {"kB", 1e3},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"KiB", kKibi},
    {"MiB", kKibi* kKibi},
    {"GiB", kKibi* kKibi* kKibi},
    {"TiB", kKibi* kKibi* kKibi* kKibi},
}};
constexpr double kMost = 9e18;  // below 2^63

}  // namespace

std::optional<int64_t> parse_bytes(const std::string& text) {
  const char* const end = text.data() + text.size();
  // A plain number is taken digit by digit: a double has not enough of them.
  int64_t whole = 0;
  const auto plain = std::from_chars(text.data(), end, whole);
  if (plain.ec == std::errc() && plain.ptr == end) {
    return whole < 0 ? std::nullopt : std::optional(whole);
  }
  double number = 0;
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string_view rest(read.ptr, static_cast<size_t>(end - read.ptr));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  for (const auto& unit : kUnits) {
    if (rest != unit.name) continue;
    const double bytes = number * unit.bytes;
    return bytes < kMost ? std::optional(static_cast<int64_t>(bytes)) : std::nullopt;
  }
  return std::nullopt;
}

int64_t bytes_from(const std::string& text) {
  const auto bytes = parse_bytes(text);
  TORCH_CHECK_VALUE(
      bytes, "[bytes] \"", text, "\": write a number and a unit, such as 64GiB, 512MiB or 80GB");
  return *bytes;
}

std::string exact_byte_text(int64_t bytes) {
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kByteUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kByteUnits.at(unit);
}

}  // namespace sherd
