// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sherd {

/// Returns a proof about `text` that only processes with the same run token, SHERD_TOKEN in the
/// environment, can make: a keyed hash (HMAC-SHA1) of 20 bytes, as hexadecimal digits. Without a
/// token every process can make it.
std::string token_proof(const std::string& text);
/// The same with a given token.
std::string token_proof(const std::string& text, const std::string& token);

/// Compares all characters of two texts, so that the time shows nothing of a wrong one.
bool equal_in_constant_time(const std::string& a, const std::string& b);

}  // namespace sherd
