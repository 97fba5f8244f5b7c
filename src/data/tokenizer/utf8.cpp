// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/utf8.h"

#include <cstdio>
#include <cstring>

namespace sherd {
namespace {

uint8_t byte_at(std::string_view text, size_t at) {
  return static_cast<uint8_t>(text[at]);
}

bool continues(uint8_t byte) {
  return (byte & 0xC0) == 0x80;
}

/// How many bytes a character has that begins with this one; 0: none does.
size_t bytes_after(uint8_t first) {
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) return 2;
  if (first >= 0xE0 && first < 0xF0) return 3;
  return first >= 0xF0 && first < 0xF5 ? 4 : 0;
}

/// Whether a character may begin with these two bytes.
bool may_follow(uint8_t first, uint8_t second) {
  const bool too_long = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second >= 0xA0;
  const bool beyond = first == 0xF4 && second >= 0x90;
  return continues(second) && !too_long && !surrogate && !beyond;
}

/// The bytes of the character at `at`; 0: it is none.
size_t valid_bytes(std::string_view text, size_t at) {
  const uint8_t first = byte_at(text, at);
  const size_t bytes = bytes_after(first);
  if (bytes == 0 || bytes > text.size() - at) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (!continues(byte_at(text, at + i))) return 0;
  }
  if (bytes < 3) return bytes;
  return may_follow(first, byte_at(text, at + 1)) ? bytes : 0;
}

}  // namespace

CharacterPart longest_part(std::string_view text, size_t at) {
  const uint8_t first = byte_at(text, at);
  const size_t wanted = bytes_after(first);
  if (wanted <= 1) return {wanted, wanted == 1};
  size_t bytes = 1;
  while (bytes < wanted && at + bytes < text.size()) {
    const uint8_t next = byte_at(text, at + bytes);
    const bool fine = bytes == 1 ? may_follow(first, next) : continues(next);
    if (!fine) break;
    ++bytes;
  }
  return {bytes, bytes == wanted};
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {  // most of most texts
        at += sizeof(eight);
        continue;
      }
    }
    const size_t bytes = valid_bytes(text, at);
    if (bytes == 0) return at;
    at += bytes;
  }
  return std::nullopt;
}

Character character_at(std::string_view text, size_t at) {
  const uint8_t first = byte_at(text, at);
  const size_t bytes = bytes_after(first);
  if (bytes == 1) return {first, 1};
  uint32_t code = first & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (byte_at(text, at + i) & 0x3Fu);
  return {code, bytes};
}

Character character_before(std::string_view text, size_t at) {
  do --at;
  while (continues(byte_at(text, at)));
  return character_at(text, at);
}

void append_utf8(std::string& text, uint32_t code) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
  }
  if (code >= 0x80) add(0x80 | (code & 0x3F));
}

bool is_white_space(uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  switch (code) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000: return true;
    default: return code >= 0x2000 && code <= 0x200A;
  }
}

std::string code_text(uint32_t code) {
  char text[16];
  std::snprintf(text, sizeof(text), "U+%04X", code);
  return text;
}

}  // namespace sherd
