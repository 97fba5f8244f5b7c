// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint/folders.h"
#include "checkpoint/fp8_export.h"
#include "checkpoint/sealed_json.h"
#include "checkpoint/stored_model.h"

namespace sherd {

/// A checkpoint's folder while it is being written.
struct UnfinishedFolder {
  UnfinishedFolder() = default;
  explicit UnfinishedFolder(std::string name) : folder(std::move(name)) {
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  }
  std::string folder;  ///< its final name
  std::string path() const { return unfinished_name(folder); }

  /// Creates it, empty. Called by one rank.
  void make() const;
  /// Removes it if possible.
  void discard() const noexcept;
  /// Gives it its final name, in place of an older folder of that name. Called by one rank, after
  /// all have written.
  void finish() const;

 private:
  void replace(const std::string& parent) const;
};

constexpr int64_t kVersion = 2;                    ///< version of the format
constexpr int64_t kBlockBytes = int64_t{4} << 20;  ///< largest block that has one checksum

/// Returns the contents of state.json, without which a folder is no checkpoint. `files` has sizes,
/// `texts` checksums.
Json state_of(
    const std::map<std::string, int64_t>& numbers,
    int64_t ranks,
    const Json& files,
    const Json& texts,
    const std::optional<AdamW::Progress>& progress);

/// Writes this rank's bytes of all files, and their checksums. Takes a few MiB of memory where
/// parameters are not on the CPU or are converted.
void write_part(
    const UnfinishedFolder& folder,
    const std::vector<StoredParameter>& parameters,
    const FilePlan& plan,
    const Fp8Export& fp8,
    int64_t rank);

/// Writes the small files and, last, state.json, which completes the checkpoint. Called by one
/// rank, after all have written their parts.
void write_state(
    const UnfinishedFolder& folder,
    const FilePlan& plan,
    int64_t ranks,
    const std::optional<AdamW::Progress>& progress,
    const SaveOptions& options);

}  // namespace sherd
