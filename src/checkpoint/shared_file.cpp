// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shared_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <future>
#include <system_error>
#include <utility>

namespace sherd {
namespace {

constexpr size_t kSyncs = 8;  // at the same time

[[noreturn]] void fail(const std::string& path, int error) {
  TORCH_CHECK(
      false, "[checkpoint] ", path, " can't be written: ", std::strerror(error),
      error == ENOSPC || error == EDQUOT ? ": make room" : ": check the folder");
}

}  // namespace

SharedFile::SharedFile(const std::string& path)
    : path_(path), number_(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644)) {
  if (number_ < 0) fail(path, errno);
}

SharedFile::~SharedFile() {
  if (number_ >= 0) close(number_);
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : path_(std::move(other.path_)), number_(std::exchange(other.number_, -1)) {}

void SharedFile::write(const void* data, int64_t size, int64_t at) const {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = pwrite(number_, bytes, static_cast<size_t>(size), at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) fail(path_, done == 0 ? EIO : errno);
    bytes += done;
    size -= done;
    at += done;
  }
}

void SharedFile::reserve(int64_t size) const {
  const int error = posix_fallocate(number_, 0, size);
  // Where a file system can't, it is known when it is written.
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) fail(path_, error);
}

void SharedFile::sync() const {
  if (fsync(number_) != 0) fail(path_, errno);
}

void sync_all(const std::vector<SharedFile>& files) {
  std::atomic<size_t> next = 0;
  const auto sync_some = [&] {
    for (size_t i = next++; i < files.size(); i = next++) files[i].sync();
  };
  std::vector<std::future<void>> others;
  try {
    while (others.size() + 1 < std::min(files.size(), kSyncs)) {
      others.push_back(std::async(std::launch::async, sync_some));
    }
  } catch (const std::system_error&) {  // no thread to be had: with fewer
  }
  std::exception_ptr problem;
  try {
    sync_some();
  } catch (const c10::Error&) {
    problem = std::current_exception();
  }
  for (auto& other : others) {
    try {
      other.get();
    } catch (const c10::Error&) {
      problem = std::current_exception();
    }
  }
  if (problem) std::rethrow_exception(problem);
}

SharedFile make_text(const std::string& path, const std::string& text) {
  unlink(path.c_str());  // it may be there, and longer
  SharedFile file(path);
  file.write(text.data(), std::ssize(text), 0);
  return file;
}

void write_text(const std::string& path, const std::string& text) {
  make_text(path, text).sync();
}

void sync_folder(const std::string& path) {
  const int number = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (number < 0) fail(path, errno);
  const int result = fsync(number);
  const int error = errno;
  close(number);
  if (result != 0 && error != EINVAL) fail(path, error);
}

}  // namespace sherd
