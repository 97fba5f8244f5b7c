// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/mapped_file.h"

namespace sherd {

/// A file of token numbers, mapped into memory: nothing is read before it is asked for.
class TokenFile {
 public:
  enum class Kind : uint8_t { bytes = 1, uint16 = 2, uint32 = 4 };  ///< and their size
  TokenFile(const std::string& path, Kind kind);

  const std::string& path() const { return file_.path(); }
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

 private:
  MappedFile file_;
  Kind kind_;
  int64_t size_ = 0;
};

}  // namespace sherd
