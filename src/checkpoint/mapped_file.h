// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "sherd/export.h"

namespace sherd {

/// A file mapped into memory, read-only: its bytes are read from disk on first access.
class SHERD_API MappedFile {
 public:
  /// Maps a file. Throws if it can't be opened or is not a regular file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const unsigned char* data() const { return data_; }  ///< null if the file is empty
  size_t size() const { return size_; }                ///< in bytes

 private:
  std::string path_;
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sherd
