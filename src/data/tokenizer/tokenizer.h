// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/byte_pairs.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_file.h"

namespace sherd {

/// Text to numbers as a tokenizer.json of Hugging Face's says, for byte-level BPE: the tokenizers
/// of GPT-2, Llama 3, Qwen and the like. What it gives is what their library gives for
/// encode(text, add_special_tokens=False). So the file's post_processor plays no part (what begins
/// and ends a document is the caller's affair; prefix() has what it puts in front), nor do decoder,
/// padding and truncation. Letters, digits and spaces are those of PCRE2's Unicode: what a later
/// one has added may be cut elsewhere.
///
/// Not for several threads at once: it remembers words.
class Tokenizer {
 public:
  /// `path` is what messages call the file.
  Tokenizer(const std::string& path, std::string_view json);

  using Sink = std::function<void(std::span<const uint32_t>)>;
  /// Hands out the tokens of `text`, which is one document, in order and some at a time. Throws
  /// where the text, which messages call `name`, is no UTF-8, or not in the NFC that the file asks
  /// for. No place is safe to cut a document at for every pattern that a file may have, so it is
  /// taken whole; but nothing of its size is kept, except a copy with add_prefix_space.
  void encode(std::string_view text, const std::string& name, const Sink& sink);
  std::vector<uint32_t> encode(std::string_view text, const std::string& name = "the text");

  /// Returns the bytes of a text that a token stands for. The bytes of all tokens of a text, one
  /// after the other, are the text, but for what the file says to leave out or add; those of one
  /// token may be a part of a character (TextStream). Nothing for a number without a token.
  std::optional<std::string> bytes_of(uint32_t token);
  /// Returns the tokens that the file's post_processor puts in front of a text, such as
  /// <|begin_of_text|>.
  const std::vector<uint32_t>& prefix() const { return prefix_; }
  /// The largest number of a token, and 1: what model.vocab must at least be.
  int64_t vocab() const { return vocab_; }
  std::optional<uint32_t> id_of(std::string_view token) const;
  /// Tokens that are found in texts as they stand, such as "<|end_of_text|>".
  std::vector<std::string> added() const;

 private:
  Tokenizer(const std::string& path, TokenizerFile file);

  std::string path_;
  bool nfc_ = false;
  int64_t vocab_ = 0;
  TextMap<uint32_t> tokens_;
  TextMap<uint32_t> added_;
  std::unordered_map<uint32_t, std::string> bytes_;  // filled when it is first asked for
  std::vector<uint32_t> prefix_;
  AddedTokens raw_;
  AddedTokens normalized_;
  PreTokenizer pre_tokenizer_;
  BytePairs byte_pairs_;
};

}  // namespace sherd
