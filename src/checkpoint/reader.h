// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checksum_index.h"
#include "checkpoint/file_plan.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/sealed_json.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

/// Why the folder of that very name is no whole checkpoint, in words; nothing: it is one.
std::optional<std::string> why_incomplete(const std::string& folder);

/// A checkpoint's files, each mapped into memory when something of it is first read. A byte is
/// handed out only after the block that it was written in has been held against its checksum.
class CheckpointReader {
 public:
  /// Whether all files are looked at when it is opened, or each when it is read. Where many ranks
  /// read, one of them looks at all.
  enum class Check : uint8_t { all_sizes, what_is_read };
  /// Throws, naming the file, where the state or the checksums can't be read, or a file that is
  /// looked at is missing or has another size.
  explicit CheckpointReader(const std::string& folder, Check check = Check::all_sizes);
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
  File& add(const std::string& name);
  void take_tensors(File& file, const SafetensorsHeader& header);
  void take_index();
  void take_version_1();
  void take_checksums(const std::string& path);
  const MappedFile& open(File& file);
  void verify(File& file, size_t number);
  void verify(File& file, int64_t begin, int64_t end);

  std::string folder_;
  Json state_;
  std::vector<std::unique_ptr<File>> files_;
  std::unique_ptr<MappedFile> checksums_;
  PerSet<std::map<std::string, PlannedTensor>> tensors_;
};

}  // namespace sherd
