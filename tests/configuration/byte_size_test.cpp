// SPDX-License-Identifier: Apache-2.0
#include "configuration/byte_size.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

TEST(ByteSizeTest, ReadsWhatPeopleWrite) {
  EXPECT_EQ(bytes_from("64GiB"), 64LL << 30);
  EXPECT_EQ(bytes_from("512 MiB"), 512LL << 20);
  EXPECT_EQ(bytes_from("80GB"), 80'000'000'000);
  EXPECT_EQ(bytes_from("1.5 TiB"), 3LL << 39);
  EXPECT_EQ(bytes_from("4096"), 4096);
  EXPECT_EQ(bytes_from("9007199254740993"), 9007199254740993);  // no double has it
  EXPECT_EQ(bytes_from("1e3"), 1000);
  EXPECT_EQ(bytes_from("7B"), 7);
  for (const auto* text :
       {"", "GiB", "-1", "-1GiB", "80Gb", "1 2", "inf", "nan", "1e30TiB", "5  B"}) {
    EXPECT_THROW(bytes_from(text), c10::ValueError) << text;
  }
}

TEST(ByteSizeTest, WritesForReadersAndExactly) {
  EXPECT_EQ(byte_text(0), "0 B");
  EXPECT_EQ(byte_text(24'373'938'585), "22.7 GiB");
  EXPECT_EQ(byte_text(141LL << 30), "141 GiB");
  EXPECT_EQ(exact_byte_text(141LL << 30), "141GiB");
  EXPECT_EQ(exact_byte_text(1536LL << 20), "1536MiB");
  for (const int64_t bytes : {0LL, 1LL, 1023LL, 80'000'000'000LL, 5LL << 50}) {
    EXPECT_EQ(bytes_from(exact_byte_text(bytes)), bytes);
  }
}

}  // namespace
}  // namespace sherd
