// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/text_tokens.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "checkpoint/mapped_file.h"

namespace sherd {
namespace {

constexpr int64_t kVocabOfBytes = 256;  // of models whose tokens are bytes

std::string_view content_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

}  // namespace

TextTokens::TextTokens(
    const std::string& folder, int64_t vocab, const std::optional<std::string>& tokenizer) {
  std::error_code code;
  const auto path = tokenizer.value_or((std::filesystem::path(folder) / "tokenizer.json").string());
  if (!tokenizer && !std::filesystem::exists(path, code)) {
    TORCH_CHECK_VALUE(
        vocab == kVocabOfBytes, "[tokenizer] ", folder, " has no tokenizer.json, and a vocabulary ",
        "of ", vocab, " is not one of bytes: give a tokenizer.json (--tokenizer, data.tokenizer)");
    return;
  }
  tokenizer_.emplace(path, content_of(MappedFile(path)));
  TORCH_CHECK_VALUE(
      tokenizer_->vocab() <= vocab, "[tokenizer] ", path, " has tokens up to ",
      tokenizer_->vocab() - 1, ", but the vocabulary of ", folder, " has ", vocab,
      ": give the tokenizer that belongs to the model");
}

std::vector<int64_t> TextTokens::encode(std::string_view text, const std::string& name) {
  std::vector<int64_t> result;
  if (tokenizer_) {
    const auto tokens = tokenizer_->encode(text, name);
    result.assign(tokens.begin(), tokens.end());
  } else {
    for (const char byte : text) result.push_back(static_cast<unsigned char>(byte));
  }
  return result;
}

std::vector<int64_t> TextTokens::encode_file(const std::string& path) {
  const MappedFile file(path);
  return encode(content_of(file), path);
}

void TextTokens::check_file(const std::string& path) {
  const MappedFile file(path);
}

std::vector<int64_t> TextTokens::prefix() const {
  if (!tokenizer_) return {};
  return {tokenizer_->prefix().begin(), tokenizer_->prefix().end()};
}

std::string TextTokens::bytes_of(int64_t token) {
  if (tokenizer_) return tokenizer_->bytes_of(static_cast<uint32_t>(token)).value_or("");
  return std::string(1, static_cast<char>(token));
}

}  // namespace sherd
