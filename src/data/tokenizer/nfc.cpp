// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/nfc.h"

#include <algorithm>
#include <iterator>

#include "data/tokenizer/nfc_ranges.h"
#include "data/tokenizer/utf8.h"

namespace sherd {
namespace {

constexpr uint32_t kFirst = 0x300;  // nothing below is in either table

template <size_t N>
const CodeRange* find(const CodeRange (&ranges)[N], uint32_t code) {
  const auto* after = std::upper_bound(
      std::begin(ranges), std::end(ranges), code,
      [](uint32_t value, const CodeRange& range) { return value < range.first; });
  if (after == std::begin(ranges) || code > std::prev(after)->last) return nullptr;
  return std::prev(after);
}

}  // namespace

std::optional<size_t> first_not_nfc(std::string_view text) {
  uint8_t before = 0;
  for (size_t at = 0; at < text.size();) {
    const auto character = character_at(text, at);
    uint8_t combining = 0;
    if (character.code >= kFirst) {
      if (find(kChangedByNfc, character.code)) return at;
      const auto* mark = find(kMarks, character.code);
      if (mark) combining = mark->combining;
      if (mark && combining < before) return at;
    }
    before = combining;
    at += character.bytes;
  }
  return std::nullopt;
}

}  // namespace sherd
