// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

/// A file that several ranks write, each its own bytes. Errors name the file and what the system
/// says.
class SharedFile {
 public:
  /// Made if it is not there.
  explicit SharedFile(const std::string& path);
  ~SharedFile();
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&&) = delete;

  void write(const void* data, int64_t size, int64_t at) const;
  /// Room for all of it, or an error now.
  void reserve(int64_t size) const;
  /// All that was written is on the disk.
  void sync() const;

 private:
  std::string path_;
  int number_ = -1;
};

/// All that was written to any of them is on the disk. They are synced at the same time, so that
/// the disk can take them in one go.
void sync_all(const std::vector<SharedFile>& files);

/// A whole small file, not yet synced.
SharedFile make_text(const std::string& path, const std::string& text);
/// A whole small file, on the disk when it returns.
void write_text(const std::string& path, const std::string& text);
/// What was made, renamed or removed in a folder is on the disk.
void sync_folder(const std::string& path);

}  // namespace sherd
