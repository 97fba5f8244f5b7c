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
  /// What is written besides the tokens: nothing, or documents and masks with a header.
  enum class Form : uint8_t { plain, with_documents };
  TokenWriter(const std::string& path, TokenFile::Kind kind, Form form = Form::plain);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// The next token begins a document.
  void begin_document();
  /// The numbers fit the kind. `targets`: a model is to learn to predict them.
  void write(std::span<const uint32_t> tokens, bool targets = true);
  int64_t size() const { return size_; }  ///< in tokens
  int64_t documents() const { return std::ssize(document_begins_); }
  int64_t targets() const { return targets_; }
  /// The last call.
  void finish();

 private:
  void flush();
  void append(std::span<const uint64_t> numbers);
  void finish_header();

  std::string path_;
  std::string unfinished_;
  TokenFile::Kind kind_;
  Form form_;
  int file_ = -1;
  int64_t size_ = 0;
  int64_t targets_ = 0;
  std::vector<uint64_t> document_begins_;
  std::vector<uint64_t> mask_edges_;
  std::vector<unsigned char> buffer_;
};

}  // namespace sherd
