// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace sherd {

/// A lock that keeps a second run out of a folder: the operating system's lock on the file
/// run.lock, which names its owner. It ends with the process, however that ends.
class RunLock {
 public:
  struct Options {
    /// Time to wait for the lock: a run that was just killed may still be ending.
    std::chrono::milliseconds patience{2000};
    int (*lock)(int file, int operation) = nullptr;  ///< for tests; null: flock
  };
  /// Throws, naming host, process and start time, if another run has the lock.
  explicit RunLock(const std::string& folder) : RunLock(folder, Options()) {}
  RunLock(const std::string& folder, const Options& options);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Returns the reason why there is no lock, if the file system has none; otherwise empty.
  const std::string& missing() const { return missing_; }

 private:
  bool try_lock(const Options& options);
  void write_owner() const;

  std::string path_;
  int file_ = -1;
  std::string missing_;
};

}  // namespace sherd
