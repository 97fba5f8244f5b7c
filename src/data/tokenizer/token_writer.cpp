// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/token_writer.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "data/token_format.h"

namespace sherd {
namespace {

constexpr size_t kBuffer = 1 << 20;

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// A name is on the disk when its folder is. File systems that can't do that are left alone.
void sync_folder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

}  // namespace

TokenWriter::TokenWriter(const std::string& path, TokenFile::Kind kind, Form form)
    : path_(path),
      unfinished_(path + "." + std::to_string(getpid()) + ".part"),
      kind_(kind),
      form_(form) {
  buffer_.reserve(kBuffer + sizeof(uint32_t));
  // One of this name can only be left from a process that is no more.
  unlink(unfinished_.c_str());
  file_ = open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  TORCH_CHECK_VALUE(
      file_ >= 0, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno),
      ": check the folder of ", path);
  if (form == Form::with_documents) buffer_.resize(sizeof(TokenFileHeader));
}

TokenWriter::~TokenWriter() {
  if (file_ >= 0) close(file_);
  if (!unfinished_.empty()) unlink(unfinished_.c_str());
}

void TokenWriter::begin_document() {
  const auto position = static_cast<uint64_t>(size_);
  if (document_begins_.empty() || document_begins_.back() < position) {
    document_begins_.push_back(position);
  }
}

void TokenWriter::write(std::span<const uint32_t> tokens, bool targets) {
  if (tokens.empty()) return;
  if (targets) targets_ += std::ssize(tokens);
  if (targets != (mask_edges_.size() % 2 == 0)) mask_edges_.push_back(static_cast<uint64_t>(size_));
  const auto each = static_cast<size_t>(kind_);
  for (const uint32_t token : tokens) {
    for (size_t i = 0; i < each; ++i) {
      buffer_.push_back(static_cast<unsigned char>(token >> 8 * i));
    }
    if (buffer_.size() >= kBuffer) flush();
  }
  size_ += static_cast<int64_t>(tokens.size());
}

void TokenWriter::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const auto count = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    TORCH_CHECK(
        count >= 0, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno));
    done += static_cast<size_t>(count);
  }
  buffer_.clear();
}

void TokenWriter::append(std::span<const uint64_t> numbers) {
  for (const uint64_t number : numbers) {
    for (size_t i = 0; i < sizeof(number); ++i) {
      buffer_.push_back(static_cast<unsigned char>(number >> 8 * i));
    }
    if (buffer_.size() >= kBuffer) flush();
  }
}

/// The lists behind the tokens, and the header, whose numbers are known now.
void TokenWriter::finish_header() {
  if (!document_begins_.empty() && document_begins_.back() == static_cast<uint64_t>(size_)) {
    document_begins_.pop_back();  // nothing has followed
  }
  const TokenFileHeader header{
      .token_bytes = static_cast<uint32_t>(kind_),
      .tokens = static_cast<uint64_t>(size_),
      .documents = document_begins_.size(),
      .edges = mask_edges_.size()};
  const auto written = sizeof(header) + header.tokens * header.token_bytes;
  buffer_.resize(buffer_.size() + header.bytes_before_documents() - written);
  append(document_begins_);
  append(mask_edges_);
  flush();
  TORCH_CHECK(
      pwrite(file_, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header)),
      "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno));
}

void TokenWriter::finish() {
  if (form_ == Form::with_documents) finish_header();
  flush();
  TORCH_CHECK(
      fsync(file_) == 0, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno));
  const bool closed = close(file_) == 0;
  file_ = -1;
  TORCH_CHECK(closed, "[tokenize] ", unfinished_, " can't be written: ", std::strerror(errno));
  TORCH_CHECK(
      std::rename(unfinished_.c_str(), path_.c_str()) == 0, "[tokenize] ", unfinished_,
      " can't be renamed to ", path_, ": ", std::strerror(errno));
  unfinished_.clear();
  sync_folder(folder_of(path_));
}

}  // namespace sherd
