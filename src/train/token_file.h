// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace sherd {

/// A file of token numbers, mapped into memory: nothing is read before it is asked for.
class TokenFile {
 public:
  enum class Kind : uint8_t { bytes = 1, uint16 = 2, uint32 = 4 };  ///< and their size
  TokenFile(const std::string& path, Kind kind);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< in tokens
  /// Writes `count` tokens from `begin` on to `into`. Throws, with the place, where one is not
  /// below `vocab`.
  void read(int64_t begin, int64_t count, int64_t vocab, int64_t* into) const;

 private:
  std::string path_;
  Kind kind_;
  const unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
  int64_t size_ = 0;
};

}  // namespace sherd
