// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/tokenize.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"
#include "files/temporary_folder.h"

namespace sherd {
namespace {

const std::string kLlama3 = std::string(SHERD_TEST_TOKENIZERS) + "/llama3.json";

std::string bytes_of(const std::string& path) {
  std::ostringstream into;
  into << std::ifstream(path, std::ios::binary).rdbuf();
  return into.str();
}

class TokenizeTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
    return folder_.file(name);
  }
  TokenizeOptions options(std::vector<std::string> texts) const {
    return {.tokenizer = kLlama3, .texts = std::move(texts), .out = folder_.file("tokens.bin")};
  }
  std::vector<uint32_t> tokens(TokenFile::Kind kind) const {
    const TokenFile from(folder_.file("tokens.bin"), kind);
    std::vector<int64_t> read(static_cast<size_t>(from.size()));
    from.read(0, from.size(), int64_t{1} << 32, read.data());
    return {read.begin(), read.end()};
  }
  size_t files() const {
    size_t count = 0;
    DIR* folder = opendir(folder_.path().c_str());
    while (const auto* entry = readdir(folder)) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
  }
  /// Neither `out` nor anything else is changed by what is refused.
  void expect_refused(const TokenizeOptions& given, const std::vector<std::string>& words) const {
    const auto out = file("tokens.bin", "as it was");
    const auto before = files();
    std::string message;
    try {
      tokenize(given);
    } catch (const c10::ValueError& error) {
      message = error.what_without_backtrace();
    }
    for (const auto& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
    }
    EXPECT_EQ(bytes_of(out), "as it was");
    EXPECT_EQ(files(), before);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(TokenizeTest, WritesTheTokensOfEachTextAndTheEnd) {
  auto given = options({file("a.txt", "Once upon a time"), file("b.txt", "a pot.\n")});
  given.end = "<|end_of_text|>";
  file("tokens.bin", "replaced");
  const auto result = tokenize(given);
  Tokenizer tokenizer(kLlama3, bytes_of(kLlama3));
  auto expected = tokenizer.encode("Once upon a time");
  expected.push_back(501);
  for (const uint32_t token : tokenizer.encode("a pot.\n")) expected.push_back(token);
  expected.push_back(501);
  EXPECT_EQ(tokens(TokenFile::Kind::uint16), expected);
  EXPECT_EQ(result.tokens, std::ssize(expected));
  EXPECT_EQ(result.bytes, 23);
  EXPECT_EQ(result.vocab, 505);
  EXPECT_EQ(result.dtype, "uint16");
  EXPECT_EQ(files(), 3u);
}

TEST_F(TokenizeTest, NumbersAreAsWideAsAskedOrNeeded) {
  auto given = options({file("a.txt", "Once upon a time")});
  given.dtype = "uint32";
  EXPECT_EQ(tokenize(given).dtype, "uint32");
  const auto wide = tokens(TokenFile::Kind::uint32);
  given.dtype = std::nullopt;
  EXPECT_EQ(tokenize(given).dtype, "uint16");
  EXPECT_EQ(tokens(TokenFile::Kind::uint16), wide);

  auto json = nlohmann::json::parse(bytes_of(kLlama3));
  json["model"]["vocab"]["Q"] = 65535;
  given.tokenizer = file("t.json", json.dump());
  EXPECT_EQ(tokenize(given).dtype, "uint16");
  json["model"]["vocab"]["Q"] = 65536;
  file("t.json", json.dump());
  EXPECT_EQ(tokenize(given).dtype, "uint32");
  given.dtype = "uint16";
  expect_refused(given, {"dtype = uint16", "t.json", "65536", "uint32"});
}

TEST_F(TokenizeTest, LinesOfJsonAreDocumentsWithTargets) {
  const auto lines = file(
      "a.jsonl",
      "{\"text\": \"Once upon\", \"id\": 7}\n\n"
      "{\"prompt\": \"a pot \", \"completion\": \"cooked\"}\r\n"
      "{\"segments\": [{\"text\": \"x\", \"targets\": true}, {\"text\": \"y\", \"targets\": "
      "false}]}");
  auto given = options({lines, file("b.txt", "a time")});
  given.end = "<|end_of_text|>";
  const auto result = tokenize(given);
  Tokenizer tokenizer(kLlama3, bytes_of(kLlama3));
  std::vector<uint32_t> expected;
  std::vector<int64_t> sizes;
  const auto add = [&](const char* text, bool ends) {
    const auto some = tokenizer.encode(text);
    expected.insert(expected.end(), some.begin(), some.end());
    if (ends) expected.push_back(501);
    sizes.push_back(std::ssize(some) + ends);
  };
  add("Once upon", true);
  add("a pot ", false);
  add("cooked", true);
  add("x", false);
  add("y", false);
  add("a time", true);
  EXPECT_EQ(tokens(TokenFile::Kind::uint16), expected);
  const TokenFile written(given.out, TokenFile::Kind::bytes);
  const int64_t prompt = sizes[0], completion = prompt + sizes[1], segments = completion + sizes[2];
  const int64_t masked = segments + sizes[3], last = masked + sizes[4];
  EXPECT_EQ(
      written.document_begins(0, written.size()),
      (std::vector<int64_t>{0, prompt, segments, last}));
  EXPECT_EQ(
      written.masked_runs(0, written.size()),
      (std::vector<std::pair<int64_t, int64_t>>{{prompt, completion}, {masked, last}}));
  EXPECT_EQ(result.documents, 4);
  EXPECT_EQ(result.targets, std::ssize(expected) - sizes[1] - sizes[4]);
  given.plain = true;
  expect_refused(given, {"a.jsonl:3", "--plain"});
}

TEST_F(TokenizeTest, APlainFileHasTokensAlone) {
  auto given = options({file("a.txt", "Once upon a time")});
  given.plain = true;
  const auto result = tokenize(given);
  EXPECT_EQ(bytes_of(given.out).size(), 2 * static_cast<size_t>(result.tokens));
  EXPECT_EQ(
      tokens(TokenFile::Kind::uint16),
      Tokenizer(kLlama3, bytes_of(kLlama3)).encode("Once upon a time"));
  EXPECT_EQ(TokenFile(given.out, TokenFile::Kind::uint16).documents(), 0);
}

TEST_F(TokenizeTest, LinesThatAreNoDocumentsAreRefused) {
  const auto refuse = [&](const std::string& line, const std::vector<std::string>& words) {
    expect_refused(options({file("a.jsonl", "{\"text\": \"x\"}\n" + line)}), words);
  };
  refuse("{\"text\": ", {"a.jsonl:2", "not a JSON object"});
  refuse("[1]", {"a.jsonl:2", "not a JSON object"});
  refuse("{\"content\": \"x\"}", {"a.jsonl:2", "\"prompt\" and \"completion\"", "has \"content\""});
  refuse("{}", {"has no key"});
  refuse("{\"text\": 7}", {"a.jsonl:2", "\"text\" = 7"});
  refuse("{\"prompt\": \"x\"}", {"\"completion\" is missing"});
  refuse("{\"segments\": [{\"text\": \"x\"}]}", {"\"targets\""});
  refuse("{\"text\": \"\xff\"}", {"a.jsonl:2"});
}

TEST_F(TokenizeTest, TextsOfAnyLengthAreWrittenWhole) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "pot number " + std::to_string(i) + "\n";
  tokenize(options({file("a.txt", text)}));
  EXPECT_EQ(tokens(TokenFile::Kind::uint16), Tokenizer(kLlama3, bytes_of(kLlama3)).encode(text));
}

TEST_F(TokenizeTest, AnErrorHalfwayLeavesTheFileAsItWas) {
  const auto fine = file("a.txt", "Once upon a time");
  expect_refused(options({fine, file("b.txt", "bad \xff")}), {"b.txt", "byte 4 ", "UTF-8"});
}

TEST_F(TokenizeTest, TextsThatAreNotThereAreRefused) {
  const auto fine = file("a.txt", "Once upon a time");
  expect_refused(options({}), {"no texts"});
  expect_refused(options({fine, folder_.file("none.txt")}), {"none.txt", "can't be opened"});
  expect_refused(options({fine, file("empty.txt", "")}), {"empty.txt", "is empty"});
  expect_refused(options({folder_.path()}), {"not a regular file"});
}

TEST_F(TokenizeTest, OptionsThatMakeNoSenseAreRefused) {
  const auto text = file("a.txt", "Once upon a time");
  auto given = options({text});
  given.end = "<|end_of_txt|>";
  expect_refused(given, {"end = <|end_of_txt|>", "did you mean <|end_of_text|>?"});
  given.end = "[EOS]";
  expect_refused(given, {"[EOS]", "there are <|begin_of_text|>, "});
  given = options({text});
  given.dtype = "int8";
  expect_refused(given, {"dtype = int8", "uint16 or uint32"});
  given = options({text});
  given.tokenizer = folder_.file("none.json");
  expect_refused(given, {"none.json", "can't be opened"});
  given.tokenizer = text;
  expect_refused(given, {"a.txt", "not JSON"});
}

TEST_F(TokenizeTest, PlacesThatCannotBeWrittenToAreRefused) {
  const auto text = file("a.txt", "Once upon a time");
  auto given = options({text});
  given.out = "";
  expect_refused(given, {"give out"});
  given.out = folder_.file("none/tokens.bin");
  expect_refused(given, {"none/tokens.bin", "no folder"});
  given.out = folder_.path();
  expect_refused(given, {"not a regular file"});
  given.out = folder_.path() + "/./a.txt";
  expect_refused(given, {"a.txt", "one of the texts"});
  given.tokenizer = file("t.json", bytes_of(kLlama3));
  given.out = folder_.file("hard_link");
  ASSERT_EQ(link(given.tokenizer.c_str(), given.out.c_str()), 0);
  expect_refused(given, {"hard_link", "is the tokenizer"});
}

}  // namespace
}  // namespace sherd
