// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <fstream>
#include <string>

namespace sherd::app {

/// Throws with the name of the file if it can't be written whole.
inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  TORCH_CHECK_VALUE(
      file, path, ": it can't be written: check that its folder exists and the disk has space");
}

}  // namespace sherd::app
