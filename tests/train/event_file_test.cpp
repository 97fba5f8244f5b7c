// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "files/temporary_folder.h"

namespace sherd {
namespace {

// Bytes from hexadecimal digits, in which blanks don't count.
std::string hex(std::string_view digits) {
  std::string bytes;
  std::string pair;
  for (const char c : digits) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) continue;
    pair += c;
    if (pair.size() < 2) continue;
    bytes += static_cast<char>(std::stoi(pair, nullptr, 16));
    pair.clear();
  }
  return bytes;
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The lengths of a file's records; their checksums must be right.
std::vector<size_t> records_in(const std::string& file) {
  std::vector<size_t> lengths;
  for (size_t at = 0; at < file.size();) {
    const auto length = static_cast<size_t>(static_cast<uint8_t>(file[at])) +
                        (static_cast<size_t>(static_cast<uint8_t>(file[at + 1])) << 8);
    EXPECT_EQ(file.substr(at, length + 16), record_of(file.substr(at + 12, length)));
    lengths.push_back(length);
    at += length + 16;
  }
  return lengths;
}

// The expected bytes are those that protobuf 7.36 and tensorboard 2.21 write.
TEST(EventFile, ARecordHasItsLengthAndTwoMaskedChecksums) {
  EXPECT_EQ(
      record_of(version_event(1.5)),
      hex("18 00 00 00 00 00 00 00  a3 7f 4b 22  09 00 00 00 00 00 00 f8 3f  1a 0d"
          "62 72 61 69 6e 2e 45 76 65 6e 74 3a 32  2a 28 64 6c"));
}

TEST(EventFile, AnEventHasTimeStepAndScalars) {
  EXPECT_EQ(
      scalars_event(1.5, 300, {{"train/loss", 0.1}, {"lr", -2}}),
      hex("09 00 00 00 00 00 00 f8 3f  10 ac 02  2a 1e"
          "0a 11  0a 0a 74 72 61 69 6e 2f 6c 6f 73 73  15 cd cc cc 3d"
          "0a 09  0a 02 6c 72  15 00 00 00 c0"));
  EXPECT_EQ(
      scalars_event(1.5, -1, {}),
      hex("09 00 00 00 00 00 00 f8 3f  10 ff ff ff ff ff ff ff ff ff 01  2a 00"));
  EXPECT_EQ(scalars_event(1.5, 128, {}), hex("09 00 00 00 00 00 00 f8 3f  10 80 01  2a 00"));
  EXPECT_EQ(start_event(1.5, 300), hex("09 00 00 00 00 00 00 f8 3f  10 ac 02  3a 02 08 01"));
}

TEST(EventFile, ANumberThatIsNotFiniteStaysSo) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(scalars_event(0, 1, {{"x", infinity}}).ends_with(hex("15 00 00 80 7f")));
  EXPECT_TRUE(scalars_event(0, 1, {{"x", -infinity}}).ends_with(hex("15 00 00 80 ff")));
  EXPECT_TRUE(scalars_event(0, 1, {{"x", std::numeric_limits<double>::quiet_NaN()}})
                  .ends_with(hex("15 00 00 c0 7f")));
}

TEST(EventFile, EveryStepIsInTheFileWhenAddReturns) {
  const testing::TemporaryFolder folder;
  EventFile events(folder.path());
  const auto name = std::filesystem::path(events.path()).filename().string();
  EXPECT_TRUE(name.starts_with("events.out.tfevents.")) << name;
  EXPECT_EQ(records_in(content(events.path())).size(), 1u);  // the version
  StepMetrics metrics{.step = 4, .loss = 1};
  events.add(metrics);
  const auto before = records_in(content(events.path()));
  ASSERT_EQ(before.size(), 3u);  // and the start, once
  EXPECT_EQ(content(events.path()).find("validation/loss"), std::string::npos);
  metrics.val_loss = 2;
  events.add(metrics);
  const auto after = records_in(content(events.path()));
  ASSERT_EQ(after.size(), 4u);
  // The tag, the value, and two headers of two bytes.
  EXPECT_EQ(after.back(), before.back() + std::string("validation/loss").size() + 5 + 4);
  EXPECT_NE(content(events.path()).find("validation/loss"), std::string::npos);
}

TEST(EventFile, AFolderThatIsNotThereIsNamed) {
  try {
    EventFile("/nowhere/at/all");
    FAIL() << "it was made";
  } catch (const c10::Error& error) {
    const std::string said = error.what_without_backtrace();
    EXPECT_NE(said.find("/nowhere/at/all/events.out"), std::string::npos) << said;
    EXPECT_NE(said.find("check train.out"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace sherd
