// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/StringUtil.h>

#include <chrono>
#include <string>

namespace sherd {

/// Returns a time as errors print it: "60 s", "1.5 s".
inline std::string in_seconds(std::chrono::milliseconds time) {
  return c10::str(static_cast<double>(time.count()) / 1000, " s");
}

}  // namespace sherd
