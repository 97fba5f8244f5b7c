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

/// Returns the reason why the folder of exactly this name is not a complete checkpoint; nothing if
/// it is one.
std::optional<std::string> why_incomplete(const std::string& folder);

/// A checkpoint's files, each mapped into memory when it is first read from. Bytes are returned
/// only after their block has been compared with its checksum.
class CheckpointReader {
 public:
  /// Whether the constructor checks that all files exist with their sizes, or each file is checked
  /// when it is first read. If many ranks read, one of them checks all.
  enum class Check : uint8_t { all_sizes, what_is_read };
  /// Throws, naming the file, if the state or the checksums can't be read, or if a checked file is
  /// missing or has another size.
  explicit CheckpointReader(const std::string& folder, Check check = Check::all_sizes);
  ~CheckpointReader();

  const std::string& folder() const { return folder_; }
  const Json& state() const { return state_; }
  /// Returns the tensors of a set, by name, with their files and offsets.
  const std::map<std::string, PlannedTensor>& tensors(Set set) const { return tensors_[set]; }
  /// Returns the bytes of some elements of a tensor. Valid while the reader exists. Throws if a
  /// checksum is wrong.
  std::span<const unsigned char> read(const PlannedTensor& tensor, int64_t begin, int64_t count);
  /// Checks every byte of every file. Throws if a checksum is wrong.
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
