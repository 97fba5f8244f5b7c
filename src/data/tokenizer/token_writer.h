// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace sherd {

/// Writes a file of token numbers beside the place where it is to be, and moves it there when it is
/// whole and on the disk. Unless that has happened, nothing is left of it.
class TokenWriter {
 public:
  TokenWriter(const std::string& path, TokenFile::Kind kind);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// The numbers fit the kind.
  void write(std::span<const uint32_t> tokens);
  int64_t size() const { return size_; }  ///< in tokens
  /// The last call.
  void finish();

 private:
  void flush();

  std::string path_;
  std::string unfinished_;
  TokenFile::Kind kind_;
  int file_ = -1;
  int64_t size_ = 0;
  std::vector<unsigned char> buffer_;
};

}  // namespace sherd
