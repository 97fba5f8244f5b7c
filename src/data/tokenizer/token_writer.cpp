// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/token_writer.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sherd {
namespace {

constexpr size_t kBuffer = 1 << 20;

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// A name is on the disk when its folder is. File systems that can't do that are left alone.
void sync_folder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

}  // namespace

TokenWriter::TokenWriter(const std::string& path, TokenFile::Kind kind)
    : path_(path), unfinished_(path + "." + std::to_string(getpid()) + ".part"), kind_(kind) {
  buffer_.reserve(kBuffer + sizeof(uint32_t));
  // One of this name can only be left from a process that is no more.
  unlink(unfinished_.c_str());
  file_ = open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  TORCH_CHECK_VALUE(
      file_ >= 0, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno),
      ": check the folder of ", path);
}

TokenWriter::~TokenWriter() {
  if (file_ >= 0) close(file_);
  if (!unfinished_.empty()) unlink(unfinished_.c_str());
}

void TokenWriter::write(std::span<const uint32_t> tokens) {
  const auto each = static_cast<size_t>(kind_);
  for (const uint32_t token : tokens) {
    for (size_t i = 0; i < each; ++i) {
      buffer_.push_back(static_cast<unsigned char>(token >> 8 * i));
    }
    if (buffer_.size() >= kBuffer) flush();
  }
  size_ += static_cast<int64_t>(tokens.size());
}

void TokenWriter::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const auto count = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK(
        count >= 0, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno));
    done += static_cast<size_t>(count);
  }
  buffer_.clear();
}

void TokenWriter::finish() {
  flush();
  TORCH_CHECK(
      fsync(file_) == 0, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno));
  const bool closed = close(file_) == 0;
  file_ = -1;
  TORCH_CHECK(closed, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno));
  TORCH_CHECK(
      std::rename(unfinished_.c_str(), path_.c_str()) == 0, "[tokenize] ", unfinished_,
      " can't be renamed to ", path_, ": ", std::strerror(errno));
  unfinished_.clear();
  sync_folder(folder_of(path_));
}

}  // namespace sherd
