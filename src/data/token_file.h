// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/mapped_file.h"

namespace sherd {

/// A file of token numbers, mapped into memory: nothing is read before it is asked for. It may know
/// where documents begin and which tokens are no targets (token_format.h).
class TokenFile {
 public:
  enum class Kind : uint8_t { bytes = 1, uint16 = 2, uint32 = 4 };  ///< and their size
  /// `kind` is that of a file without a header.
  TokenFile(const std::string& path, Kind kind);
  /// Tokens in memory, which messages call `name`.
  TokenFile(std::string name, std::vector<uint32_t> tokens);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< in tokens
  Kind kind() const { return kind_; }
  /// What a number of this kind can at most be.
  int64_t largest_possible() const { return (int64_t{1} << 8 * static_cast<int>(kind_)) - 1; }
  struct Largest {
    int64_t token = -1;     ///< -1: there is none
    int64_t position = -1;  ///< where it is first
  };
  /// The largest token among those from `begin` up to `end`. Reads them all.
  Largest largest(int64_t begin, int64_t end) const;
  uint32_t operator[](int64_t position) const;
  /// Writes `count` tokens from `begin` on to `into`. Throws, with the place, where one is not
  /// below `vocab`.
  void read(int64_t begin, int64_t count, int64_t vocab, int64_t* into) const;

  /// How many documents there are; 0: it does not know.
  int64_t documents() const { return documents_; }
  /// Returns the positions from `begin` up to `end` where documents begin.
  std::vector<int64_t> document_begins(int64_t begin, int64_t end) const;
  bool has_mask() const { return edges_ > 0; }
  /// Returns the runs [first, last) of tokens from `begin` up to `end` that are no targets.
  std::vector<std::pair<int64_t, int64_t>> masked_runs(int64_t begin, int64_t end) const;
  /// Throws unless documents and the mask's edges are in order. Reads them all.
  void check_order() const;

 private:
  void read_header();
  int64_t number(const unsigned char* list, int64_t index) const;
  /// The first of a list's numbers that is not below `least`.
  int64_t lower_bound(const unsigned char* list, int64_t count, int64_t least) const;

  std::string path_;
  std::optional<MappedFile> file_;
  std::vector<uint32_t> memory_;
  Kind kind_;
  int64_t size_ = 0;
  const unsigned char* tokens_ = nullptr;
  const unsigned char* document_begins_ = nullptr;
  const unsigned char* mask_edges_ = nullptr;
  int64_t documents_ = 0;
  int64_t edges_ = 0;
};

}  // namespace sherd
