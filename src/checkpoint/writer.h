// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint/folders.h"
#include "checkpoint/sealed_json.h"
#include "checkpoint/stored_model.h"

namespace sherd {

/// A checkpoint's folder while it is being written.
struct UnfinishedFolder {
  UnfinishedFolder() = default;
  explicit UnfinishedFolder(std::string name) : folder(std::move(name)) {
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  }
  std::string folder;  ///< that it will be
  std::string path() const { return unfinished_name(folder); }

  /// Makes it, empty. One rank.
  void make() const;
  /// Removes it, if it can.
  void discard() const noexcept;
  /// Takes the place of what is there. One rank, when all have written.
  void finish() const;

 private:
  void replace(const std::string& parent) const;
};

constexpr int64_t kVersion = 2;                    ///< of the format
constexpr int64_t kBlockBytes = int64_t{4} << 20;  ///< that have one checksum, at most

/// state.json: what says that a checkpoint is whole. `files` has sizes, `texts` checksums.
Json state_of(
    const std::map<std::string, int64_t>& numbers,
    int64_t ranks,
    const Json& files,
    const Json& texts,
    const std::optional<AdamW::Progress>& progress);

/// Writes this rank's bytes of all files, and their checksums. Needs no memory but for a few MiB
/// where the parameters are not on the CPU or have another dtype.
void write_part(
    const UnfinishedFolder& folder,
    const std::vector<StoredParameter>& parameters,
    const FilePlan& plan,
    int64_t rank);

/// What one rank writes when all have: the small files, and what says that the checkpoint is whole.
void write_state(
    const UnfinishedFolder& folder,
    const FilePlan& plan,
    int64_t ranks,
    const std::optional<AdamW::Progress>& progress,
    const SaveOptions& options);

}  // namespace sherd
