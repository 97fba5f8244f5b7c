// SPDX-License-Identifier: Apache-2.0
#include "data/token_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

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

TokenFile::TokenFile(const std::string& path, Kind kind) : file_(path), kind_(kind) {
  const auto each = static_cast<size_t>(kind);
  TORCH_CHECK_VALUE(
      file_.size() % each == 0, "[train.data] ", path, " has ", file_.size(),
      " bytes, which is not a multiple of ", each, ": is data.dtype right?");
  size_ = static_cast<int64_t>(file_.size() / each);
}

uint32_t TokenFile::operator[](int64_t position) const {
  const auto* at = file_.data() + position * static_cast<int64_t>(kind_);
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
  const void* data = file_.data();  // of a page, so aligned
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
