// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/file_system.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

namespace sherd {
namespace {

int exchange_names(const char* one, const char* other) {
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE));
}

}  // namespace

FileSystem& file_system() {
  static FileSystem one{exchange_names, std::rename, std::remove};
  return one;
}

FileCounts& file_counts() {
  static FileCounts one;
  return one;
}

}  // namespace sherd
