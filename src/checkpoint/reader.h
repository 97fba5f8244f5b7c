// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_plan.h"
#include "checkpoint/sealed_json.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

/// A whole checkpoint's files, mapped into memory. A byte is handed out only after the block that
/// it was written in has been held against its checksum.
class CheckpointReader {
 public:
  /// Throws, naming the file, where the state can't be read, a file is missing or has another size,
  /// or a byte has no checksum.
  explicit CheckpointReader(const std::string& folder);
  ~CheckpointReader();

  const std::string& folder() const { return folder_; }
  const Json& state() const { return state_; }
  /// By name, with their places in files().
  const std::map<std::string, PlannedTensor>& tensors(Set set) const { return tensors_[set]; }
  /// Some elements of a tensor. Valid while the reader lives.
  std::span<const unsigned char> read(const PlannedTensor& tensor, int64_t begin, int64_t count);
  /// Every byte of every file.
  void verify();

 private:
  struct File;
  void open(const std::string& name);
  void take_checksums(const std::string& path);
  void verify(File& file, int64_t begin, int64_t end);

  std::string folder_;
  Json state_;
  std::vector<std::unique_ptr<File>> files_;
  PerSet<std::map<std::string, PlannedTensor>> tensors_;
};

}  // namespace sherd
