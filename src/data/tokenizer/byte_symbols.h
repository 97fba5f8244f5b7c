// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// A byte-level vocabulary is written in text that can be read: each byte has a character as its
// symbol. Those that print in Latin-1 stand for themselves; the other 68 take U+0100 and on.
namespace sherd {

std::string symbol_of(uint8_t byte);

/// The bytes that a token's symbols stand for; nothing where it has characters that are none.
std::optional<std::string> bytes_of_symbols(std::string_view token);

}  // namespace sherd
