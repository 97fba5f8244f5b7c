// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/pattern.h"

namespace sherd {

/// A token that is found in a text as it stands, before the text is cut.
struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool single_word = false;  ///< only where no letter or digit is beside it
  bool lstrip = false;       ///< takes the white space before it, too
  bool rstrip = false;       ///< and after it
  bool normalized = false;   ///< looked for after normalization
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  using Text = std::function<void(std::string_view)>;
  using Found = std::function<void(uint32_t)>;
  /// Hands out the text between tokens, and the tokens, in order. Of those that match, the one
  /// that begins first is taken, and of several there the longest. The text is valid UTF-8.
  void split(std::string_view text, const Text& between, const Found& found);

 private:
  /// The longest token that the text has at `at`.
  const AddedToken* longest(std::string_view text, size_t at) const;
  bool stands_alone(std::string_view text, size_t begin, size_t end);

  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> first_{};   // bytes that a token begins with
  std::optional<Pattern> letter_;   // of a word
};

}  // namespace sherd
