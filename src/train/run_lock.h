// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace sherd {

/// Keeps a second run out of a folder: a lock of the system on its file run.lock, which says who
/// has it. It ends with the process, however that ends.
class RunLock {
 public:
  struct Options {
    /// A run that was killed just now may still be ending.
    std::chrono::milliseconds patience{2000};
    int (*lock)(int file, int operation) = nullptr;  ///< for tests; null: flock
  };
  /// Throws, naming host, process and since when, where another run has the lock.
  explicit RunLock(const std::string& folder) : RunLock(folder, Options()) {}
  RunLock(const std::string& folder, const Options& options);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Why there is no lock, in words, where the file system has none; else empty.
  const std::string& missing() const { return missing_; }

 private:
  bool try_lock(const Options& options);
  void write_owner() const;

  std::string path_;
  int file_ = -1;
  std::string missing_;
};

}  // namespace sherd
