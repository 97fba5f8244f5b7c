// SPDX-License-Identifier: Apache-2.0
#include "train/token_file.h"

#include <c10/util/Exception.h>

#include <cstring>

namespace sherd {

TokenFile::TokenFile(const std::string& path, Kind kind) : file_(path), kind_(kind) {
  const auto each = static_cast<size_t>(kind);
  TORCH_CHECK_VALUE(
      file_.size() % each == 0, "[train.data] ", path, " has ", file_.size(),
      " bytes, which is no multiple of ", each, ": is data.dtype right?");
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
