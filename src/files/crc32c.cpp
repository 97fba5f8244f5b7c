// SPDX-License-Identifier: Apache-2.0
#include "files/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace sherd {
namespace {

constexpr std::array<uint32_t, 256> table() {
  std::array<uint32_t, 256> result{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    result[byte] = crc;
  }
  return result;
}

uint32_t by_table(const unsigned char* data, size_t size, uint32_t crc) {
  static constexpr auto kTable = table();
  for (; size > 0; --size) crc = kTable[(crc ^ *data++) & 0xff] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t by_instruction(
    const unsigned char* data, size_t size, uint32_t crc) {
  uint64_t wide = crc;
  for (; size >= 8; size -= 8, data += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, sizeof(word));
    wide = _mm_crc32_u64(wide, word);
  }
  return by_table(data, size, static_cast<uint32_t>(wide));
}
#endif

}  // namespace

uint32_t crc32c(const void* data, size_t size, uint32_t before) {
  const auto* bytes = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~by_instruction(bytes, size, ~before);
#endif
  return ~by_table(bytes, size, ~before);
}

}  // namespace sherd
