// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace sherd {

/// How the tokens of a model stand for text: by a tokenizer.json or, for a vocabulary of 256
/// without one, as the bytes themselves (data.text).
class TextTokens {
 public:
  /// Reads `tokenizer`, by default the tokenizer.json of the model's folder. Throws if there is
  /// none and the vocabulary is not 256, and if the tokenizer has tokens beyond the vocabulary.
  TextTokens(
      const std::string& folder, int64_t vocab, const std::optional<std::string>& tokenizer = {});

  /// Returns the tokens of a text, which messages call `name`.
  std::vector<int64_t> encode(std::string_view text, const std::string& name);
  /// Returns the tokens of a text file.
  std::vector<int64_t> encode_file(const std::string& path);
  /// Throws unless a text file can be opened.
  static void check_file(const std::string& path);
  /// Returns the tokens that begin a text for this model.
  std::vector<int64_t> prefix() const;
  /// Returns the bytes that a token stands for; none for a number without a token.
  std::string bytes_of(int64_t token);

 private:
  std::optional<Tokenizer> tokenizer_;
};

}  // namespace sherd
