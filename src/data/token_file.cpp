// SPDX-License-Identifier: Apache-2.0
#include "data/token_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "data/token_format.h"

namespace sherd {
namespace {

constexpr int64_t kBlock = 1 << 20;  // tokens; the compiler makes vectors of the loop over one

template <class T>
TokenFile::Largest largest_among(const T* tokens, int64_t begin, int64_t end) {
  TokenFile::Largest result;
  int64_t block = begin;  // with the largest so far
  for (int64_t from = begin; from < end; from += kBlock) {
    const int64_t to = std::min(end, from + kBlock);
    T most = 0;
    for (int64_t i = from; i < to; ++i) most = std::max(most, tokens[i]);
    if (most <= result.token) continue;
    result.token = most;
    block = from;
  }
  if (result.token >= 0) {
    result.position = std::find(tokens + block, tokens + end, result.token) - tokens;
  }
  return result;
}

}  // namespace

TokenFile::TokenFile(const std::string& path, Kind kind) : path_(path), file_(path), kind_(kind) {
  tokens_ = file_->data();
  const auto& magic = TokenFileHeader::kMagic;
  if (file_->size() >= magic.size() && std::memcmp(tokens_, magic.data(), magic.size()) == 0) {
    read_header();
    return;
  }
  const auto each = static_cast<size_t>(kind);
  TORCH_CHECK_VALUE(
      file_->size() % each == 0, "[train.data] ", path, " has ", file_->size(),
      " bytes, which is not a multiple of ", each, ": is data.dtype right?");
  size_ = static_cast<int64_t>(file_->size() / each);
}

TokenFile::TokenFile(std::string name, std::vector<uint32_t> tokens)
    : path_(std::move(name)), memory_(std::move(tokens)), kind_(Kind::uint32) {
  tokens_ = reinterpret_cast<const unsigned char*>(memory_.data());
  size_ = std::ssize(memory_);
}

void TokenFile::read_header() {
  TokenFileHeader header;
  const auto bytes = file_->size();
  if (bytes >= sizeof(header)) std::memcpy(&header, tokens_, sizeof(header));
  const uint64_t each = header.token_bytes;
  // Numbers that no file has would overflow below.
  const bool small = header.tokens <= bytes && header.documents <= bytes && header.edges <= bytes;
  TORCH_CHECK_VALUE(
      bytes >= sizeof(header) && header.version == 1 && (each == 2 || each == 4) && small &&
          bytes == header.bytes_before_documents() + 8 * (header.documents + header.edges),
      "[train.data] ", path_, " begins as a file of `sherd tokenize`, but it has ", bytes,
      " bytes, and its header says version ", header.version, ", ", header.tokens, " tokens of ",
      each, " bytes, ", header.documents, " documents and ", header.edges,
      " mask edges: it is damaged or cut short; write it again");
  kind_ = each == 2 ? Kind::uint16 : Kind::uint32;
  size_ = static_cast<int64_t>(header.tokens);
  documents_ = static_cast<int64_t>(header.documents);
  edges_ = static_cast<int64_t>(header.edges);
  document_begins_ = tokens_ + header.bytes_before_documents();
  mask_edges_ = document_begins_ + 8 * documents_;
  tokens_ += sizeof(header);
}

int64_t TokenFile::number(const unsigned char* list, int64_t index) const {
  int64_t value = 0;
  std::memcpy(&value, list + 8 * index, sizeof(value));
  return value;
}

int64_t TokenFile::lower_bound(const unsigned char* list, int64_t count, int64_t least) const {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (number(list, middle) < least) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

std::vector<int64_t> TokenFile::document_begins(int64_t begin, int64_t end) const {
  std::vector<int64_t> result;
  for (int64_t i = lower_bound(document_begins_, documents_, begin); i < documents_; ++i) {
    const int64_t position = number(document_begins_, i);
    if (position >= end) break;
    result.push_back(position);
  }
  return result;
}

std::vector<std::pair<int64_t, int64_t>> TokenFile::masked_runs(int64_t begin, int64_t end) const {
  std::vector<std::pair<int64_t, int64_t>> result;
  // An edge at `begin` itself still decides about it.
  int64_t i = lower_bound(mask_edges_, edges_, begin + 1);
  if (i % 2 == 1) --i;
  for (; i < edges_ && number(mask_edges_, i) < end; i += 2) {
    const int64_t last = i + 1 < edges_ ? number(mask_edges_, i + 1) : size_;
    result.emplace_back(std::max(begin, number(mask_edges_, i)), std::min(end, last));
  }
  return result;
}

void TokenFile::check_order() const {
  const auto check = [&](const unsigned char* list, int64_t count, const char* name) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = number(list, i), before = i > 0 ? number(list, i - 1) : -1;
      TORCH_CHECK_VALUE(
          position > before && position < size_, "[train.data] ", path_, ": ", name, " ", i,
          " is at position ", position, ", behind one at ", before, ", of ", size_,
          " tokens: the file is damaged; write it again");
    }
  };
  check(document_begins_, documents_, "document");
  check(mask_edges_, edges_, "mask edge");
  TORCH_CHECK_VALUE(
      documents_ == 0 || number(document_begins_, 0) == 0, "[train.data] ", path_,
      ": the first document begins at position ", documents_ ? number(document_begins_, 0) : 0,
      ", not at 0: the file is damaged; write it again");
}

uint32_t TokenFile::operator[](int64_t position) const {
  const auto* at = tokens_ + position * static_cast<int64_t>(kind_);
  if (kind_ == Kind::bytes) return *at;
  if (kind_ == Kind::uint16) {
    uint16_t value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint32_t value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

TokenFile::Largest TokenFile::largest(int64_t begin, int64_t end) const {
  TORCH_INTERNAL_ASSERT(begin >= 0 && begin <= end && end <= size_);
  const void* data = tokens_;  // aligned: behind the beginning of a page or a header
  switch (kind_) {
    case Kind::bytes: return largest_among(static_cast<const uint8_t*>(data), begin, end);
    case Kind::uint16: return largest_among(static_cast<const uint16_t*>(data), begin, end);
    case Kind::uint32: return largest_among(static_cast<const uint32_t*>(data), begin, end);
  }
  TORCH_INTERNAL_ASSERT(false);
}

void TokenFile::read(int64_t begin, int64_t count, int64_t vocab, int64_t* into) const {
  TORCH_INTERNAL_ASSERT(begin >= 0 && count >= 0 && begin + count <= size_);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t token = (*this)[begin + i];
    TORCH_CHECK_VALUE(
        token < vocab, "[train.data] ", path(), ": token ", begin + i, " is ", token,
        ", but the model knows ", vocab, ": set model.vocab, or data.dtype is not what it is");
    into[i] = token;
  }
}

}  // namespace sherd
