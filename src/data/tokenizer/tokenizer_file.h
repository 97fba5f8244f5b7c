// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/byte_pairs.h"
#include "data/tokenizer/json_value.h"
#include "data/tokenizer/pre_tokenizer.h"

namespace sherd {

/// What a tokenizer.json says, checked.
struct TokenizerFile {
  struct Model {
    TextMap<uint32_t> vocab;  ///< tokens as the file writes them, in symbols of bytes
    std::vector<PairMerge> merges;
    bool ignore_merges = false;
  };
  Model model;
  std::vector<AddedToken> added;
  std::vector<uint32_t> prefix;  ///< what the post_processor puts in front of a text
  bool nfc = false;
  PreTokenizer::Options pre_tokenizer;
};

/// Throws, naming the file, the key and its value, where the JSON is malformed or asks for what is
/// not supported.
TokenizerFile parse_tokenizer(const std::string& path, std::string_view json);

/// Its parts.
TokenizerFile::Model parse_byte_pairs(const JsonValue& model);
PreTokenizer::Options parse_pre_tokenizer(const JsonValue& file);
/// Those that a TemplateProcessing has before the text; other kinds put none there.
std::vector<uint32_t> parse_prefix(const JsonValue& file);

}  // namespace sherd
