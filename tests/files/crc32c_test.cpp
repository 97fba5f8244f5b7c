// SPDX-License-Identifier: Apache-2.0
#include "files/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace sherd {
namespace {

uint32_t checksum(const std::string& text) {
  return crc32c(text.data(), text.size());
}

TEST(Crc32c, GivesTheChecksumsOfRfc3720) {
  EXPECT_EQ(checksum("123456789"), 0xe3069283u);
  EXPECT_EQ(checksum(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(checksum(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  EXPECT_EQ(checksum(rising), 0x46dd794eu);
  EXPECT_EQ(checksum(std::string(rising.rbegin(), rising.rend())), 0x113fdb5cu);
  EXPECT_EQ(checksum(""), 0u);
}

TEST(Crc32c, ContinuesFromTheChecksumOfTheBytesBefore) {
  const std::string text = "123456789";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto before = crc32c(text.data(), cut);
    EXPECT_EQ(crc32c(text.data() + cut, text.size() - cut, before), 0xe3069283u);
  }
}

}  // namespace
}  // namespace sherd
