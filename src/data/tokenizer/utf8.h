// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sherd {

/// The first byte of `text` that is no UTF-8, if there is one. Surrogates, characters written
/// longer than they need and those beyond U+10FFFF are none.
std::optional<size_t> first_invalid_utf8(std::string_view text);

/// The beginning of a character.
struct CharacterPart {
  size_t bytes = 0;    ///< how many of them may begin a character; 0: not even the first
  bool whole = false;  ///< they are one
};
/// Returns the longest part of a character that `text` has at `at`.
CharacterPart longest_part(std::string_view text, size_t at);

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;
};
/// The character that begins at `at`, or ends before it; `text` is valid UTF-8 and has it.
Character character_at(std::string_view text, size_t at);
Character character_before(std::string_view text, size_t at);

void append_utf8(std::string& text, uint32_t code);

/// As Unicode's property White_Space says.
bool is_white_space(uint32_t code);

/// "U+1F980"
std::string code_text(uint32_t code);

}  // namespace sherd
