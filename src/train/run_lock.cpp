// SPDX-License-Identifier: Apache-2.0
#include "train/run_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

namespace sherd {
namespace {

std::string owner_text() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%F %T", &parts);
  return c10::str("process ", getpid(), " on ", host.data(), ", since ", time.data(), " UTC");
}

std::string owner_in(const std::string& path) {
  std::string text;
  std::ifstream in(path);
  std::getline(in, text);
  return text.empty() ? "an unknown process" : text;
}

/// Whether a path still leads to an open file: the run before may have removed it.
bool leads_to(const std::string& path, int file) {
  struct stat there {
  }, here{};
  return stat(path.c_str(), &there) == 0 && fstat(file, &here) == 0 &&
         there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

}  // namespace

RunLock::RunLock(const std::string& folder, const Options& options)
    : path_((std::filesystem::path(folder) / "run.lock").string()) {
  const auto end = std::chrono::steady_clock::now() + options.patience;
  while (!try_lock(options)) {
    TORCH_CHECK_VALUE(
        std::chrono::steady_clock::now() < end, "[train] train.out = ", folder,
        " is in use by another run: ", owner_in(path_), " (", path_,
        "); wait for its end, stop it, or choose another train.out");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  if (missing_.empty()) write_owner();
}

/// True: this process has the lock, or there can't be one. False: another has it.
bool RunLock::try_lock(const Options& options) {
  const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  TORCH_CHECK_VALUE(
      file >= 0, "[train] ", path_, " can't be written: ", std::strerror(errno),
      ": check train.out and the disk");
  const auto lock = options.lock ? options.lock : flock;
  const int error = lock(file, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  if (error == 0 && leads_to(path_, file)) {
    file_ = file;
    return true;
  }
  close(file);
  if (error == 0 || error == EWOULDBLOCK || error == EINTR) return false;
  missing_ = c10::str(
      "the file system of ", path_, " has no locks (", std::strerror(error),
      "): a second run into train.out would not be noticed");
  return true;
}

void RunLock::write_owner() const {
  const auto text = owner_text() + "\n";
  // What can't be said is only missing in the message to others.
  if (ftruncate(file_, 0) != 0 || pwrite(file_, text.data(), text.size(), 0) < 0) return;
}

RunLock::~RunLock() {
  if (file_ < 0) return;
  unlink(path_.c_str());  // while it is ours
  close(file_);
}

}  // namespace sherd
