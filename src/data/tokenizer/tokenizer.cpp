// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/tokenizer.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "data/tokenizer/byte_symbols.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/utf8.h"

namespace sherd {
namespace {

constexpr size_t kAtOnce = 1 << 14;  // tokens that go out together

std::vector<AddedToken> chosen(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> result;
  for (const auto& token : tokens) {
    if (token.normalized == normalized) result.push_back(token);
  }
  return result;
}

BytePairs::Options byte_pair_options(const std::string& path, const TokenizerFile::Model& model) {
  BytePairs::Options options;
  options.name = path;
  options.merges = model.merges;
  for (size_t byte = 0; byte < options.bytes.size(); ++byte) {
    const auto found = model.vocab.find(symbol_of(static_cast<uint8_t>(byte)));
    if (found != model.vocab.end()) options.bytes[byte] = found->second;
  }
  if (!model.ignore_merges) return options;
  for (const auto& [token, id] : model.vocab) {
    if (auto bytes = bytes_of_symbols(token)) options.whole.emplace(std::move(*bytes), id);
  }
  return options;
}

}  // namespace

Tokenizer::Tokenizer(const std::string& path, std::string_view json)
    : Tokenizer(path, parse_tokenizer(path, json)) {}

Tokenizer::Tokenizer(const std::string& path, TokenizerFile file)
    : path_(path),
      nfc_(file.nfc),
      prefix_(std::move(file.prefix)),
      raw_(chosen(file.added, false)),
      normalized_(chosen(file.added, true)),
      pre_tokenizer_(std::move(file.pre_tokenizer)),
      byte_pairs_(byte_pair_options(path, file.model)) {
  tokens_ = std::move(file.model.vocab);
  for (const auto& token : file.added) added_.emplace(token.content, token.id);
  for (const auto* map : {&tokens_, &added_}) {
    for (const auto& [token, id] : *map) vocab_ = std::max(vocab_, int64_t{id} + 1);
  }
}

void Tokenizer::encode(std::string_view text, const std::string& name, const Sink& sink) {
  const auto invalid = first_invalid_utf8(text);
  TORCH_CHECK_VALUE(
      !invalid, "[tokenizer] ", name, ": byte ", invalid.value_or(0),
      " is not UTF-8: convert the text, or leave out files that are not text");
  std::vector<uint32_t> tokens;
  const auto add = [&](uint32_t token) { tokens.push_back(token); };
  const PreTokenizer::Sink piece = [&](std::string_view bytes) {
    byte_pairs_.encode(bytes, tokens);
    if (tokens.size() < kAtOnce) return;
    sink(tokens);
    tokens.clear();
  };
  const AddedTokens::Text plain = [&](std::string_view part) { pre_tokenizer_.run(part, piece); };
  const AddedTokens::Text unnormalized = [&](std::string_view part) {
    const auto odd = nfc_ ? first_not_nfc(part) : std::nullopt;
    TORCH_CHECK_VALUE(
        !odd, "[tokenizer] ", name, ": byte ", part.data() - text.data() + odd.value_or(0),
        " begins ", code_text(character_at(part, odd.value_or(0)).code), ", which the normalizer ",
        "NFC of ", path_, " may change together with its neighbours; texts with such characters ",
        "are not supported for this tokenizer");
    normalized_.split(part, plain, add);
  };
  raw_.split(text, unnormalized, add);
  if (!tokens.empty()) sink(tokens);
}

std::vector<uint32_t> Tokenizer::encode(std::string_view text, const std::string& name) {
  std::vector<uint32_t> all;
  encode(text, name, [&](std::span<const uint32_t> some) {
    all.insert(all.end(), some.begin(), some.end());
  });
  return all;
}

std::optional<std::string> Tokenizer::bytes_of(uint32_t token) {
  if (bytes_.empty()) {
    for (const auto& [text, id] : added_) bytes_.emplace(id, text);  // they stand for themselves
    for (const auto& [text, id] : tokens_) {
      bytes_.emplace(id, bytes_of_symbols(text).value_or(text));
    }
  }
  const auto found = bytes_.find(token);
  return found == bytes_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<uint32_t> Tokenizer::id_of(std::string_view token) const {
  for (const auto* map : {&added_, &tokens_}) {
    const auto found = map->find(token);
    if (found != map->end()) return found->second;
  }
  return std::nullopt;
}

std::vector<std::string> Tokenizer::added() const {
  std::vector<std::string> result;
  for (const auto& [token, id] : added_) result.push_back(token);
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace sherd
