// SPDX-License-Identifier: Apache-2.0
#include "train/dataset.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "files/temporary_folder.h"

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
      error_of([&] { make(tokens, pixels(0) + "x"); }).find("no number of images of 12 bytes"),
      std::string::npos);
  EXPECT_NE(
      error_of([&] { make(tokens, pixels(0) + pixels(1)); }).find("must stand 8 times"),
      std::string::npos);
}

}  // namespace
}  // namespace sherd
