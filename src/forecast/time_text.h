// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "files/format_text.h"

namespace sherd {

/// Returns seconds for people: "1.234 s", "56.78 ms", "9.0 us".
inline std::string time_text(double seconds) {
  if (seconds >= 1) return format_text("%.3f s", seconds);
  if (seconds >= 1e-3) return format_text("%.2f ms", seconds * 1e3);
  return format_text("%.1f us", seconds * 1e6);
}

}  // namespace sherd
