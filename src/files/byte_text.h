// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

namespace sherd {

inline constexpr std::array<const char*, 5> kByteUnits{"B", "KiB", "MiB", "GiB", "TiB"};

/// Returns a number of bytes with three or four digits and a unit, for people: "22.7 GiB".
inline std::string byte_text(int64_t bytes) {
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; std::abs(value) >= 1024 && unit + 1 < kByteUnits.size(); ++unit) value /= 1024;
  const bool whole = unit == 0 || std::abs(value) >= 100;
  std::array<char, 48> text{};
  std::snprintf(
      text.data(), text.size(), whole ? "%.0f %s" : "%.1f %s", value, kByteUnits.at(unit));
  return text.data();
}

}  // namespace sherd
