// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace sherd {

/// Calls of the file system that tests replace by ones that fail as some file systems do. Each
/// returns 0, or -1 with errno set.
struct FileSystem {
  int (*exchange)(const char* one, const char* other);  ///< swaps two names at one instant
  int (*rename)(const char* from, const char* to);
  int (*remove)(const char* path);  ///< a file or an empty folder
};
FileSystem& file_system();

/// File operations of this process since it started; tests read them.
struct FileCounts {
  std::atomic<int64_t> opens = 0;       ///< for reading
  std::atomic<int64_t> bytes_read = 0;  ///< bytes that were read
};
FileCounts& file_counts();

}  // namespace sherd
