// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "data/token_check.h"
#include "data/token_format.h"
#include "data/tokenizer/token_writer.h"
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
    return Dataset(std::move(file), std::move(seen), {.seq = 4, .vocab = 16});
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

/// A document of a token file: how many tokens it has, and which runs of them are no targets.
struct Document {
  int64_t tokens = 0;
  std::vector<std::pair<int64_t, int64_t>> masked{};
};

/// A file of documents whose tokens count up from 1.
class DocumentsTest : public DatasetTest {
 protected:
  std::string write_documents(const std::vector<Document>& documents) {
    const auto path = folder_.file("documents");
    TokenWriter writer(path, TokenFile::Kind::uint16, TokenWriter::Form::with_documents);
    uint32_t token = 0;
    for (const auto& document : documents) {
      writer.begin_document();
      for (int64_t i = 0; i < document.tokens; ++i) {
        const bool masked = std::any_of(
            document.masked.begin(), document.masked.end(),
            [&](const auto& run) { return run.first <= i && i < run.second; });
        ++token;
        writer.write({&token, 1}, !masked);
      }
    }
    writer.finish();
    return path;
  }
  Dataset dataset(const std::vector<Document>& documents, Dataset::Options options) {
    options.seq = options.seq > 0 ? options.seq : 4;
    options.vocab = 4000;
    return Dataset(
        std::make_unique<TokenFile>(write_documents(documents), TokenFile::Kind::bytes), nullptr,
        options);
  }
  static Numbers all(const Dataset& data) {
    Numbers result(static_cast<size_t>(data.samples()));
    for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<int64_t>(i);
    return result;
  }
};

TEST_F(DocumentsTest, ATokenFileKnowsDocumentsAndMasks) {
  const TokenFile file(
      write_documents({{3, {{0, 2}}}, {1}, {4, {{1, 4}}}, {2, {{0, 1}}}}), TokenFile::Kind::bytes);
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(file.kind(), TokenFile::Kind::uint16);
  EXPECT_EQ(file[9], 10u);
  EXPECT_EQ(file.documents(), 4);
  EXPECT_EQ(file.document_begins(0, 10), (Numbers{0, 3, 4, 8}));
  EXPECT_EQ(file.document_begins(3, 8), (Numbers{3, 4}));
  using Runs = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(file.masked_runs(0, 10), (Runs{{0, 2}, {5, 9}}));
  EXPECT_EQ(file.masked_runs(1, 6), (Runs{{1, 2}, {5, 6}}));
  EXPECT_EQ(file.masked_runs(2, 5), Runs());
  EXPECT_EQ(file.masked_runs(6, 7), (Runs{{6, 7}}));
  EXPECT_EQ(file.masked_runs(5, 6), (Runs{{5, 6}}));
  file.check_order();
  // To the end, where there is no last edge.
  const TokenFile open(write_documents({{3, {{1, 3}}}}), TokenFile::Kind::bytes);
  EXPECT_EQ(open.masked_runs(0, 3), (Runs{{1, 3}}));
}

TEST_F(DocumentsTest, DamagedTokenFilesAreRefused) {
  const auto path = write_documents({{3, {{0, 2}}}, {4}});
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const auto bytes = text.str();
  const auto refusal = [&](const std::string& changed) {
    try {
      TokenFile(write("changed", changed), TokenFile::Kind::uint16).check_order();
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(bytes), "");
  for (const auto& [size, word] : std::map<size_t, std::string>{
           {8, "cut short"}, {63, "cut short"}, {bytes.size() - 8, "2 documents"}}) {
    EXPECT_NE(refusal(bytes.substr(0, size)).find(word), std::string::npos) << size;
  }
  auto changed = bytes;
  changed[8] = 2;
  EXPECT_NE(refusal(changed).find("version 2"), std::string::npos);
  for (int i = 16; i < 24; ++i) changed[static_cast<size_t>(i)] = '\xff';
  changed[8] = 1;
  EXPECT_NE(refusal(changed).find("damaged"), std::string::npos);
  changed = bytes;
  changed[bytes.size() - 24] = 9;  // the second document
  EXPECT_NE(refusal(changed).find("document 1 is at position 9"), std::string::npos)
      << refusal(changed);
  changed[bytes.size() - 24] = 0;
  EXPECT_NE(refusal(changed).find("document 1 is at position 0"), std::string::npos);
}

TEST_F(DocumentsTest, DocumentsMayBeCrossedOrNot) {
  const std::vector<Document> documents{{3}, {1}, {4, {{2, 3}}}, {2}};
  const auto crossed = dataset(documents, {});
  EXPECT_EQ(crossed.samples(), 2);
  const auto plain = crossed.load({1, 0}, at::kCPU);
  EXPECT_EQ(numbers(plain.tokens), (Numbers{5, 6, 7, 8, 1, 2, 3, 4}));
  EXPECT_EQ(numbers(plain.targets), (Numbers{6, -100, 8, 9, 2, 3, 4, 5}));
  EXPECT_FALSE(plain.documents.defined());
  EXPECT_EQ(crossed.targets_in(1), 3);

  const auto separate = dataset(documents, {.documents = Documents::separate});
  EXPECT_EQ(separate.samples(), 2);
  const auto batch = separate.load({1, 0}, at::kCPU);
  EXPECT_EQ(numbers(batch.tokens), numbers(plain.tokens));
  EXPECT_EQ(numbers(batch.targets), (Numbers{6, -100, 8, -100, 2, 3, -100, -100}));
  EXPECT_EQ(numbers(batch.documents), (Numbers{0, 4, 7, 8}));
  EXPECT_EQ(separate.targets_in(0), 2);
  EXPECT_EQ(separate.targets_in(1), 2);
}

TEST_F(DocumentsTest, PackedDocumentsGoWhereThereIsSpaceForThem) {
  // Of 5 tokens a sample has; a document needs one less than it has tokens.
  const auto data =
      dataset({{4}, {5}, {1}, {3, {{0, 2}}}, {9}, {2}}, {.seq = 5, .documents = Documents::packed});
  EXPECT_EQ(data.samples(), 4);
  const auto batch = data.load(all(data), at::kCPU);
  EXPECT_EQ(numbers(batch.tokens), (Numbers{1,  2,  3,  11, 12, 5,  6,  7,  8, 23,
                                            14, 15, 16, 17, 18, 19, 20, 21, 0, 0}));
  EXPECT_EQ(numbers(batch.targets), (Numbers{2,  3,  4,  -100, 13, 6,  7,  8,  9,    24,
                                             15, 16, 17, 18,   19, 20, 21, 22, -100, -100}));
  EXPECT_EQ(numbers(batch.documents), (Numbers{0, 3, 5, 9, 10, 15, 18, 20}));
  int64_t targets = 0;
  for (const int64_t sample : all(data)) targets += data.targets_in(sample);
  EXPECT_EQ(targets, (batch.targets >= 0).sum().item<int64_t>());
}

TEST_F(DocumentsTest, PackingLosesNothingAndCutsOnlyWhatIsTooLong) {
  std::vector<Document> documents;
  int64_t expected = 0;
  for (int64_t i = 0; i < 300; ++i) {
    documents.push_back({1 + i * 7919 % 23});
    expected += documents.back().tokens - 1;
  }
  const auto data = dataset(documents, {.seq = 16, .documents = Documents::packed});
  const auto batch = data.load(all(data), at::kCPU);
  std::multiset<int64_t> seen;
  for (const int64_t token : numbers(batch.targets)) {
    if (token >= 0) seen.insert(token);
  }
  EXPECT_EQ(std::ssize(seen), expected);
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), seen.size());
  EXPECT_LT(data.samples() * 16, expected * 102 / 100 + 32);  // nearly full
}

TEST_F(DocumentsTest, AFractionIsCutOffBetweenDocuments) {
  const std::vector<Document> documents{{10}, {10}, {10}, {10}};
  const auto training = dataset(documents, {.end = 0.6});
  const auto rest = dataset(documents, {.begin = 0.6});
  EXPECT_EQ(training.size(), 30);
  EXPECT_EQ(rest.size(), 10);
  EXPECT_EQ(numbers(rest.load({0}, at::kCPU).tokens), (Numbers{31, 32, 33, 34}));
  EXPECT_EQ(training.samples() + rest.samples(), 7 + 2);
}

TEST_F(DocumentsTest, WhatHasNoDocumentsCannotBePacked) {
  const auto refusal = [&](Documents documents) {
    try {
      Dataset(
          std::make_unique<TokenFile>(write("plain", "abcdefgh"), TokenFile::Kind::bytes), nullptr,
          {.seq = 4, .vocab = 256, .documents = documents});
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(Documents::cross), "");
  EXPECT_NE(refusal(Documents::packed).find("\"packed\": write it with"), std::string::npos);
  EXPECT_NE(refusal(Documents::separate).find("\"separate\""), std::string::npos);
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
