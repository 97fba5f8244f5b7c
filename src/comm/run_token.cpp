// SPDX-License-Identifier: Apache-2.0
#include "comm/run_token.h"

#include <c10/util/hash.h>

#include <cstdlib>

namespace sherd {
namespace {

constexpr size_t kBlock = 64;  // bytes of a block of SHA-1

std::string digest(const std::string& text) {
  const auto digits = c10::sha1(text).str();
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string masked(const std::string& key, char mask) {
  auto block = key;
  block.resize(kBlock);
  for (auto& byte : block) byte = static_cast<char>(byte ^ mask);
  return block;
}

}  // namespace

std::string token_proof(const std::string& text, const std::string& token) {
  const auto key = token.size() > kBlock ? digest(token) : token;  // RFC 2104
  return c10::sha1(masked(key, 0x5c) + digest(masked(key, 0x36) + text)).str();
}

std::string token_proof(const std::string& text) {
  const char* token = std::getenv("SHERD_TOKEN");
  return token_proof(text, token == nullptr ? "" : token);
}

bool equal_in_constant_time(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  int difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace sherd
