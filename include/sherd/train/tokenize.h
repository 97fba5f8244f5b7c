// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

struct TokenizeOptions {
  std::string tokenizer;               ///< a tokenizer.json with byte-level BPE
  std::vector<std::string> texts;      ///< files of UTF-8, one document each
  std::string out;                     ///< the file of token numbers to write
  std::optional<std::string> end{};    ///< a token after each text, such as "<|end_of_text|>"
  std::optional<std::string> dtype{};  ///< "uint16" or "uint32"; the smallest that will do
};

struct TokenizeResult {
  int64_t tokens = 0;
  int64_t bytes = 0;  ///< of the texts
  int64_t vocab = 0;  ///< what model.vocab must at least be
  std::string dtype;  ///< what data.dtype must be
};

/// Writes the tokens of the texts, in their order, as data.tokens of a configuration wants them:
/// numbers of `dtype`, little-endian, and nothing else. Beyond the tokens of each text, only `end`
/// is written: no token that begins a text, whatever the file's post_processor says. A file `out`
/// is replaced when all is written; an error leaves it as it was.
SHERD_API TokenizeResult tokenize(const TokenizeOptions& options);

}  // namespace sherd
