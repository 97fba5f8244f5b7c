// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/token_check.h"
#include "files/temporary_folder.h"
#include "sherd/comm/world.h"
#include "train/earlier_run.h"

namespace sherd {
namespace {

// Images of 2 x 2 pixels, four patches of one pixel each; token 9 stands for a patch.
constexpr ImageFile::Options kImages{.size = 2, .patches = 4, .token = 9};

class DatasetTest : public ::testing::Test {
 protected:
  std::string write(const char* name, const std::string& bytes) {
    const auto path = folder_.file(name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  /// Sequences of four tokens.
  Dataset make(const std::string& tokens, const std::string& images) {
    auto file = std::make_unique<TokenFile>(write("tokens", tokens), TokenFile::Kind::bytes);
    std::unique_ptr<ImageFile> seen;
    if (!images.empty()) {
      seen = std::make_unique<ImageFile>(write("images", images), *file, kImages);
    }
    return Dataset(std::move(file), std::move(seen), 4, 16);
  }
  static std::vector<int64_t> numbers(const at::Tensor& tensor) {
    const auto flat = tensor.flatten().contiguous();
    return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
  }
  using Numbers = std::vector<int64_t>;
  testing::TemporaryFolder folder_;
};

std::string pixels(int first) {
  std::string bytes;
  for (int i = 0; i < 12; ++i) bytes += static_cast<char>(first + i);
  return bytes;
}

TEST_F(DatasetTest, ASampleIsItsTokensAndTheNextOnes) {
  const auto data = make({1, 2, 3, 4, 5, 6, 7, 8, 10, 11}, "");
  EXPECT_EQ(data.samples(), 2);
  EXPECT_EQ(data.targets_in(1), 4);
  const auto batch = data.load({1, 0}, at::kCPU);
  EXPECT_EQ(numbers(batch.tokens), (Numbers{5, 6, 7, 8, 1, 2, 3, 4}));
  EXPECT_EQ(numbers(batch.targets), (Numbers{6, 7, 8, 10, 2, 3, 4, 5}));
  EXPECT_FALSE(batch.images.defined());
}

TEST_F(DatasetTest, AnImageMayGoOnInTheNextSample) {
  // Sample 0: one token and three patches; sample 1: the fourth patch and text; sample 2: text;
  // sample 3: the second image.
  const auto data =
      make({1, 9, 9, 9, 9, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9, 1}, pixels(0) + pixels(100));
  const auto all = data.load({3, 1, 0}, at::kCPU);
  EXPECT_EQ(numbers(all.tokens), (Numbers{9, 9, 9, 9, 9, 2, 3, 4, 1, 9, 9, 9}));
  EXPECT_EQ(
      numbers(all.targets), (Numbers{-100, -100, -100, 1, 2, 3, 4, 5, -100, -100, -100, -100}));
  EXPECT_EQ(numbers(all.image_places), (Numbers{0, 1, 2, 3, 4, 9, 10, 11}));
  // The second image comes first here, the first one is read once for both its samples.
  EXPECT_EQ(numbers(all.image_patches), (Numbers{0, 1, 2, 3, 7, 4, 5, 6}));
  ASSERT_EQ(all.images.sizes(), (at::IntArrayRef{2, 3, 2, 2}));
  // Pixel (row, column) of channel c is byte (2 row + column) · 3 + c.
  EXPECT_FLOAT_EQ(all.images[0][1][1][0].item<float>(), (100 + 2 * 3 + 1) / 127.5F - 1);
  EXPECT_FLOAT_EQ(all.images[1][2][0][1].item<float>(), (1 * 3 + 2) / 127.5F - 1);
  EXPECT_EQ(data.targets_in(0), 0);
  EXPECT_EQ(data.targets_in(1), 4);
  EXPECT_EQ(data.targets_in(2), 3);
  EXPECT_EQ(data.targets_in(3), 1);
  EXPECT_FALSE(data.load({2}, at::kCPU).images.defined());
}

TEST_F(DatasetTest, MarkingTargetsLeavesTheTokensOfASingleSample) {
  const auto data = make({1, 9, 9, 9, 9, 2, 3, 4, 5}, pixels(0));
  EXPECT_EQ(numbers(data.load({0}, at::kCPU).tokens), (Numbers{1, 9, 9, 9}));
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST_F(DatasetTest, ImagesThatDoNotFitAreRefused) {
  const std::string tokens{1, 9, 9, 9, 9, 2};
  EXPECT_NE(
      error_of([&] {
        make(tokens, pixels(0) + "x");
      }).find("not a multiple of an image's 12 bytes"),
      std::string::npos);
  EXPECT_NE(
      error_of([&] { make(tokens, pixels(0) + pixels(1)); }).find("must occur 8 times"),
      std::string::npos);
}

TEST_F(DatasetTest, TheLargestTokenIsFoundWithItsPlace) {
  std::string bytes(3 << 21, '\1');  // more than one block of each kind
  bytes[4'000'004] = '\3';
  bytes[4'000'008] = '\3';
  const TokenFile narrow(write("tokens", bytes), TokenFile::Kind::bytes);
  EXPECT_EQ(narrow.largest(0, narrow.size()).token, 3);
  EXPECT_EQ(narrow.largest(0, narrow.size()).position, 4'000'004);
  EXPECT_EQ(narrow.largest(4'000'005, narrow.size()).position, 4'000'008);
  EXPECT_EQ(narrow.largest(0, 4'000'004).token, 1);
  EXPECT_EQ(narrow.largest(5, 5).token, -1);
  const TokenFile wide(narrow.path(), TokenFile::Kind::uint32);
  EXPECT_EQ(wide.largest(0, wide.size()).token, 0x01010103);
  EXPECT_EQ(wide.largest(0, wide.size()).position, 1'000'001);
}

TEST_F(DatasetTest, TokensAreCheckedOnceUntilTheFileChanges) {
  const auto world = World::from_environment({.backend = Backend::mpi});
  const auto path = write("tokens", {1, 2, 3, 9, 4});
  const auto check = [&](int64_t vocab) {
    return error_of([&] { check_tokens({path, TokenFile::Kind::bytes}, vocab, world); });
  };
  EXPECT_NE(check(9).find("token 3 is 9, but model.vocab = 9"), std::string::npos) << check(9);
  EXPECT_NE(check(9).find("set model.vocab to 10 or more"), std::string::npos);
  EXPECT_EQ(check(10), "no error");

  // Changed behind its back, with the same size and time, it is not read again …
  const auto time = std::filesystem::last_write_time(path);
  write("tokens", {99, 2, 3, 9, 4});
  std::filesystem::last_write_time(path, time);
  EXPECT_EQ(check(10), "no error");
  // … with another time it is; and so it is where what was kept can't be right.
  std::filesystem::last_write_time(path, time + std::chrono::seconds(1));
  EXPECT_NE(check(10).find("token 0 is 99"), std::string::npos) << check(10);
  write("tokens", {1, 2, 3, 4, 5});
  std::filesystem::last_write_time(path, time + std::chrono::seconds(1));
  EXPECT_EQ(check(10), "no error");
  // Bytes can't be beyond 255: nothing is read or written.
  std::filesystem::remove(path + ".checked.json");
  EXPECT_EQ(check(256), "no error");
  EXPECT_FALSE(std::filesystem::exists(path + ".checked.json"));
}

TEST_F(DatasetTest, FilesAreToldApartByTheirTokens) {
  const std::string bytes(100'000, 'a');
  auto other = bytes;
  other[50] = 'b';
  const auto of = [&](const char* name, const std::string& text) {
    return fingerprint_of({write(name, text), TokenFile::Kind::bytes});
  };
  EXPECT_EQ(of("one", bytes), of("two", bytes));
  EXPECT_NE(of("one", bytes), of("two", other));
  EXPECT_NE(of("one", bytes), of("two", bytes + "a"));
}

}  // namespace
}  // namespace sherd
