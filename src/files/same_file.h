// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace sherd {

/// Whether both paths lead to one existing file, through links or not.
inline bool same_file(const std::string& one, const std::string& other) {
  std::error_code code;
  return std::filesystem::equivalent(one, other, code) && !code;
}

}  // namespace sherd
