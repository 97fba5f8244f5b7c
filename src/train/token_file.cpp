// SPDX-License-Identifier: Apache-2.0
#include "train/token_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sherd {
namespace {

struct Descriptor {
  explicit Descriptor(const std::string& path) : number(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    TORCH_CHECK_VALUE(
        number >= 0, "[train.data] ", path, " can't be opened: ", std::strerror(errno),
        "; data.tokens and data.text name a file");
  }
  ~Descriptor() { close(number); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number;
};

}  // namespace

TokenFile::TokenFile(const std::string& path, Kind kind) : path_(path), kind_(kind) {
  const Descriptor file(path);
  struct stat about {};
  TORCH_CHECK_VALUE(
      fstat(file.number, &about) == 0 && S_ISREG(about.st_mode), "[train.data] ", path,
      " is no regular file");
  bytes_ = static_cast<size_t>(about.st_size);
  const auto each = static_cast<size_t>(kind);
  TORCH_CHECK_VALUE(
      bytes_ % each == 0, "[train.data] ", path, " has ", bytes_,
      " bytes, which is no multiple of ", each, ": is data.dtype right?");
  size_ = static_cast<int64_t>(bytes_ / each);
  if (bytes_ == 0) return;
  void* mapped = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file.number, 0);
  TORCH_CHECK(
      mapped != MAP_FAILED, "[train.data] ", path, " can't be mapped: ", std::strerror(errno));
  data_ = static_cast<const unsigned char*>(mapped);
}

TokenFile::~TokenFile() {
  if (data_) munmap(const_cast<unsigned char*>(data_), bytes_);
}

void TokenFile::read(int64_t begin, int64_t count, int64_t vocab, int64_t* into) const {
  TORCH_INTERNAL_ASSERT(begin >= 0 && count >= 0 && begin + count <= size_);
  for (int64_t i = 0; i < count; ++i) {
    const auto* at = data_ + (begin + i) * static_cast<int64_t>(kind_);
    uint32_t token = *at;
    if (kind_ == Kind::uint16) {
      uint16_t value = 0;
      std::memcpy(&value, at, sizeof(value));
      token = value;
    } else if (kind_ == Kind::uint32) {
      std::memcpy(&token, at, sizeof(token));
    }
    TORCH_CHECK_VALUE(
        token < vocab, "[train.data] ", path_, ": token ", begin + i, " is ", token,
        ", but the model knows ", vocab, ": set model.vocab, or data.dtype is not what it is");
    into[i] = token;
  }
}

}  // namespace sherd
