// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// A file that several ranks write, each its own bytes. Errors name the file and the system's
/// reason.
class SharedFile {
 public:
  /// Opens the file for writing; creates it if it does not exist.
  explicit SharedFile(const std::string& path);
  ~SharedFile();
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&&) = delete;

  void write(const void* data, int64_t size, int64_t at) const;
  /// Reserves room on the disk for a file of this size; throws if there is not enough.
  void reserve(int64_t size) const;
  /// Blocks until everything that was written is on the disk.
  void sync() const;

 private:
  std::string path_;
  int number_ = -1;
};

/// Blocks until everything that was written to the files is on the disk. Syncs them at the same
/// time, which is faster than one by one.
void sync_all(const std::vector<SharedFile>& files);

/// Writes a small file and returns it, not yet synced.
SharedFile make_text(const std::string& path, const std::string& text);
/// Writes a small file; it is on the disk on return.
void write_text(const std::string& path, const std::string& text);
/// Blocks until what was created, renamed or removed in a folder is recorded on the disk.
void sync_folder(const std::string& path);

}  // namespace sherd
