// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mapped_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/file_system.h"

namespace sherd {
namespace {

struct Descriptor {
  // Not waiting for who would write into a pipe: that is no file.
  explicit Descriptor(const std::string& path)
      : number(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    TORCH_CHECK_VALUE(number >= 0, "[file] ", path, " can't be opened: ", std::strerror(errno));
  }
  ~Descriptor() { close(number); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file(path);
  ++file_counts().opens;
  struct stat about {};
  TORCH_CHECK_VALUE(
      fstat(file.number, &about) == 0 && S_ISREG(about.st_mode), "[file] ", path,
      " is not a regular file");
  size_ = static_cast<size_t>(about.st_size);
  if (size_ == 0) return;
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number, 0);
  TORCH_CHECK(mapped != MAP_FAILED, "[file] ", path, " can't be mapped: ", std::strerror(errno));
  data_ = static_cast<const unsigned char*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<unsigned char*>(data_), size_);
}

}  // namespace sherd
