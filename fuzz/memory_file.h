// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace sherd::fuzz {

/// Bytes as a file that is on no disk.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : number_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (write(number_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
  }
  ~MemoryFile() { close(number_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(number_); }

 private:
  int number_;
};

}  // namespace sherd::fuzz
