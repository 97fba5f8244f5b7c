// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "checkpoint/safetensors_header.h"
#include "files/temporary_folder.h"

namespace sherd {
namespace {

std::string file_of(const std::string& header, size_t data) {
  std::string file(sizeof(uint64_t), '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data, 'x');
}

std::string refusal(const std::string& file) {
  try {
    parse_safetensors(
        "a.safetensors", {reinterpret_cast<const unsigned char*>(file.data()), file.size()});
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "accepted";
}

void expect_refusal(const std::string& file, const std::string& word) {
  const auto text = refusal(file);
  EXPECT_NE(text.find("a.safetensors"), std::string::npos) << text;
  EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const std::vector<std::pair<std::string, at::Tensor>> tensors{
      {"weight", at::randn({3, 5})}, {"half", at::randn({7}).to(at::kBFloat16)},
      {"a \"name\"", at::arange(4)}, {"nothing", at::empty({0, 3})},
      {"scalar", at::randn({})},     {"turned", at::randn({4, 2}).t()}};
  const testing::TemporaryFolder folder;
  const auto path = folder.file("file.safetensors");
  write_safetensors(path, tensors, {{"format", "pt"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const auto& [name, tensor] : tensors) {
    const auto back = file.read(name);
    EXPECT_EQ(back.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(back.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(back, tensor)) << name;
  }
  EXPECT_TRUE(at::equal(file.read("weight", 4, 6), tensors[0].second.flatten().slice(0, 4, 10)));
  EXPECT_THROW(file.read("weight", 10, 6), c10::ValueError);
  EXPECT_THROW(file.read("weights"), c10::ValueError);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST(Safetensors, DamagedHeadersAreRefusedWithWhatIsWrong) {
  const std::string fine = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(refusal(file_of(fine, 8)), "accepted");
  expect_refusal("", "it has 0 bytes");
  expect_refusal(file_of(fine, 8).substr(0, 20), "its header should have");
  expect_refusal(std::string(8, '\xff') + "{}", "its header should have");
  expect_refusal(file_of("{\"a\":", 0), "not JSON");
  expect_refusal(file_of("[]", 0), "not a JSON object");
  expect_refusal(file_of(fine, 9), "its data has 9 bytes, of which the tensors take 8");
  expect_refusal(file_of(fine, 7), "does not lie within");
  expect_refusal(file_of(R"({"a":3})", 0), "is not an object");
  expect_refusal(file_of(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8), "has no dtype");
  expect_refusal(file_of(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8), "'F33'");
  expect_refusal(file_of(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), "no list of shape");
  expect_refusal(
      file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "-2 in its shape");
  expect_refusal(
      file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
      "does not lie within");
  expect_refusal(
      file_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
      "larger than the file");
  expect_refusal(
      file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8), "its shape needs 4");
  expect_refusal(
      file_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}})", 8),
      "larger than the file");
  expect_refusal(
      file_of(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
          8),
      "two tensors");
  expect_refusal(
      file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "no tensor");
  expect_refusal(
      file_of(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          4),
      "two tensors 'a'");
  expect_refusal(file_of(R"({"__metadata__":{"a":3}})", 0), "is not a string");
}

/// Whatever the bytes are, the parser answers or refuses.
TEST(Safetensors, AnyChangeOfAHeaderIsAcceptedOrRefused) {
  const auto fine = file_of(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})",
      16);
  std::mt19937 random(1);
  int64_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto file = fine;
    for (int change = 0; change < 1 + i % 4; ++change) {
      file[random() % file.size()] = static_cast<char>(random() % 256);
    }
    refused += refusal(file) != "accepted";
  }
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace sherd
