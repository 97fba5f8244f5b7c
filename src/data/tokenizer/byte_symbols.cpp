// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/byte_symbols.h"

#include <array>

#include "data/tokenizer/utf8.h"

namespace sherd {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint32_t, 256> kSymbols = [] {
  std::array<uint32_t, 256> symbols{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    symbols[byte] = stands_for_itself(byte) ? byte : next++;
  }
  return symbols;
}();

constexpr std::array<int, 0x200> kBytes = [] {
  std::array<int, 0x200> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kSymbols[static_cast<size_t>(byte)]] = byte;
  return bytes;
}();

}  // namespace

std::string symbol_of(uint8_t byte) {
  std::string text;
  append_utf8(text, kSymbols[byte]);
  return text;
}

std::optional<std::string> bytes_of_symbols(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const auto character = character_at(token, at);
    at += character.bytes;
    if (character.code >= kBytes.size() || kBytes[character.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[character.code]);
  }
  return bytes;
}

}  // namespace sherd
