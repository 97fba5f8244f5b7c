// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// Options of tokenize().
struct TokenizeOptions {
  std::string tokenizer;               ///< path of a tokenizer.json with byte-level BPE
  std::vector<std::string> texts;      ///< paths of UTF-8 files: one document each, or .jsonl files
                                       ///< with one in each line (each_json_line)
  std::string out;                     ///< path of the token file to write
  std::optional<std::string> end{};    ///< token to write after each text; default: none
  std::optional<std::string> dtype{};  ///< "uint16" or "uint32"; default: the smallest that fits
  bool plain = false;                  ///< token numbers and nothing else: no documents, no masks
};

/// The result of tokenize().
struct TokenizeResult {
  int64_t tokens = 0;  ///< number of tokens
  int64_t bytes = 0;   ///< bytes of the texts
  int64_t documents = 0;
  int64_t targets = 0;  ///< number of tokens to predict
  int64_t vocab = 0;    ///< smallest possible model.vocab
  std::string dtype;    ///< value for data.dtype
};

/// Tokenizes the texts in order and writes a file for data.tokens of a configuration: token numbers
/// of `dtype`, where documents begin, and which tokens are targets (token_format.h). Of special
/// tokens only `end` is added, for example
/// "<|end_of_text|>"; the tokenizer's post_processor is ignored. An existing file is replaced when
/// everything is written; an error leaves it as it was. Throws for a missing or empty text, an
/// unknown `end`, and a tokenizer that is not supported.
SHERD_API TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace sherd
