// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/tokenizer.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/tokenizer/pattern_syntax.h"
#include "data/tokenizer/text_stream.h"
#include "data/tokenizer/utf8.h"

namespace sherd {
namespace {

using Json = nlohmann::json;

Json read(const std::string& name) {
  std::ifstream file(std::string(SHERD_TEST_TOKENIZERS) + "/" + name + ".json");
  return Json::parse(file);
}

/// What a tokenizer's file, or the text it is given, is refused with.
std::string refusal(const std::string& json, const std::string& text = "Once upon a time") {
  try {
    Tokenizer("t.json", json).encode(text, "story.txt");
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// The file of `name` with the value at a JSON pointer replaced.
std::string changed(const std::string& name, const std::string& pointer, const Json& value) {
  auto json = read(name);
  json[Json::json_pointer(pointer)] = value;
  return json.dump();
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const auto& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
  }
}

double seconds_of(const std::function<void()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class TokenizerReference : public ::testing::TestWithParam<const char*> {};

// make_tokenizer_reference.py has asked Hugging Face's library.
TEST_P(TokenizerReference, GivesTheTokensOfHuggingFacesLibrary) {
  const auto reference = read("reference");
  const auto& texts = reference["texts"];
  const auto& tokens = reference["tokens"][GetParam()];
  ASSERT_GE(texts.size(), 40u);
  ASSERT_EQ(texts.size(), tokens.size());
  Tokenizer tokenizer(GetParam(), read(GetParam()).dump());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    if (tokens[i].is_null()) {
      EXPECT_THROW(tokenizer.encode(text), c10::ValueError) << text;
      continue;
    }
    const auto expected = tokens[i].get<std::vector<uint32_t>>();
    EXPECT_EQ(tokenizer.encode(text), expected) << "text " << i << ": " << texts[i];
    EXPECT_EQ(tokenizer.encode(text), expected) << "again, from memory: " << texts[i];
  }
}

// Where it makes no difference to the tokens, too.
TEST_P(TokenizerReference, CutsTextsWhereHuggingFacesLibraryDoes) {
  const auto texts = read("reference")["texts"];
  const auto expected = read("pieces")[GetParam()];
  PreTokenizer pre_tokenizer(parse_tokenizer(GetParam(), read(GetParam()).dump()).pre_tokenizer);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<size_t> sizes;
    pre_tokenizer.run(texts[i].get<std::string>(), [&](std::string_view piece) {
      sizes.push_back(piece.size());
    });
    EXPECT_EQ(sizes, expected[i].get<std::vector<size_t>>()) << "text " << i << ": " << texts[i];
  }
}

/// The text that tokens stand for, of which some at a time go through a stream.
std::string decoded(Tokenizer& tokenizer, const std::vector<uint32_t>& tokens) {
  TextStream stream;
  std::string text;
  for (const uint32_t token : tokens) {
    const auto some = stream.add(tokenizer.bytes_of(token).value());
    EXPECT_EQ(first_invalid_utf8(some), std::nullopt) << token;
    text += some;
  }
  return text + stream.finish();
}

// Those of gpt2, llama3 and deepseek lose nothing; the others drop spaces, or add them.
TEST_P(TokenizerReference, TokensStandForTheirText) {
  const std::string name = GetParam();
  const bool lossless = name != "odd" && name != "behaviors";
  const auto reference = read("reference");
  const auto& texts = reference["texts"];
  Tokenizer tokenizer(GetParam(), read(GetParam()).dump());
  size_t compared = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& tokens = reference["tokens"][GetParam()][i];
    if (tokens.is_null()) continue;
    auto text = texts[i].get<std::string>();
    auto back = decoded(tokenizer, tokens.get<std::vector<uint32_t>>());
    if (!lossless) {
      std::erase(text, ' ');
      std::erase(back, ' ');
      if (text.find_first_of("_<\n") != std::string::npos) continue;
    }
    EXPECT_EQ(back, text) << i;
    ++compared;
  }
  EXPECT_GT(compared, 20u);
}

INSTANTIATE_TEST_SUITE_P(
    Files,
    TokenizerReference,
    ::testing::Values("gpt2", "llama3", "odd", "deepseek", "behaviors"),
    [](const auto& file) { return std::string(file.param); });

TEST(Tokenizer, ReturnsNumbersOfTokensAndTheSizeOfTheVocabulary) {
  const Tokenizer tokenizer("t.json", read("llama3").dump());
  EXPECT_EQ(tokenizer.vocab(), 505);
  EXPECT_EQ(tokenizer.id_of("<|begin_of_text|>"), 500u);
  EXPECT_EQ(tokenizer.id_of("Once"), 499u);
  EXPECT_EQ(tokenizer.id_of("nonesuch"), std::nullopt);
  EXPECT_EQ(tokenizer.added().size(), 5u);
}

TEST(Tokenizer, NumbersWithoutATokenStandForNothing) {
  Tokenizer tokenizer("t.json", read("llama3").dump());
  EXPECT_EQ(tokenizer.bytes_of(500), "<|begin_of_text|>");
  EXPECT_EQ(tokenizer.bytes_of(499), "Once");
  EXPECT_EQ(tokenizer.bytes_of(505), std::nullopt);
}

// What Python makes of the same bytes with errors="replace", and Hugging Face's library, too.
TEST(Tokenizer, StreamsHoldBackCharactersThatAreNotWhole) {
  TextStream stream;
  EXPECT_EQ(stream.add("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.add("\xA6"), "");
  EXPECT_EQ(stream.add("\x80\xC3"), "🦀");
  EXPECT_EQ(stream.add("\xA9"), "é");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.add("\xE2\x82"), "");
  EXPECT_EQ(stream.add("x\xFF\x80y"), "\uFFFDx\uFFFD\uFFFDy");
  EXPECT_EQ(
      stream.add("\xED\xA0\x80\xE0\x80|\xF4\x90"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD|\uFFFD\uFFFD");
  EXPECT_EQ(stream.add("\xF0\x9F\xA6"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Tokenizer, WhatComesBeforeATextIsThatOfTheTemplate) {
  const auto prefix = [](const Json& processor) {
    return Tokenizer("t.json", changed("llama3", "/post_processor", processor)).prefix();
  };
  const Json piece{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const Json text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json special{{"<s>", {{"id", "<s>"}, {"ids", {500, 7}}, {"tokens", {"<s>", "x"}}}}};
  const Json both{
      {"type", "TemplateProcessing"},
      {"single", {piece, text, piece}},
      {"special_tokens", special}};
  EXPECT_EQ(prefix(both), (std::vector<uint32_t>{500, 7}));
  const Json byte_level{{"type", "ByteLevel"}, {"trim_offsets", false}};
  EXPECT_EQ(prefix(byte_level), std::vector<uint32_t>());
  EXPECT_EQ(
      prefix({{"type", "Sequence"}, {"processors", {byte_level, both}}}),
      (std::vector<uint32_t>{500, 7}));
  EXPECT_EQ(prefix(nullptr), std::vector<uint32_t>());
  auto wrong = both;
  wrong["special_tokens"] = Json::object();
  expect_words(
      refusal(changed("llama3", "/post_processor", wrong)), {"special_tokens", "no '<s>'"});
}

TEST(Tokenizer, ALongTextComesInParts) {
  Tokenizer tokenizer("t.json", read("gpt2").dump());
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "pot number " + std::to_string(i) + "\n";
  std::vector<uint32_t> all;
  int parts = 0;
  tokenizer.encode(text, "story.txt", [&](std::span<const uint32_t> some) {
    all.insert(all.end(), some.begin(), some.end());
    ++parts;
  });
  EXPECT_GT(parts, 2);
  EXPECT_EQ(all, tokenizer.encode(text));
}

// Twice the length must not be four times the time; the limits are generous for slow builds.
TEST(Tokenizer, LongPiecesTakeLittleTime) {
  Tokenizer tokenizer("t.json", read("llama3").dump());
  for (const char* unit : {"a", " ", "ab", "\n", "<", "1", "<|eot"}) {
    std::string text;
    while (text.size() < 1 << 20) text += unit;
    EXPECT_LT(seconds_of([&] { tokenizer.encode(text); }), 20) << unit;
    EXPECT_LT(seconds_of([&] { tokenizer.encode(text + "é"); }), 20) << unit;
  }
}

TEST(Tokenizer, NumbersMayHaveHolesAndBeLarge) {
  auto json = read("gpt2");
  json["model"]["vocab"]["q"] = 4294967295;
  Tokenizer tokenizer("t.json", json.dump());
  EXPECT_EQ(tokenizer.vocab(), int64_t{1} << 32);
  EXPECT_EQ(tokenizer.encode("q"), std::vector<uint32_t>{4294967295});
}

TEST(Tokenizer, WhatIsNoTokenizerIsRefused) {
  expect_words(refusal(""), {"t.json", "not JSON"});
  expect_words(refusal("{\"version\": \"1.0\", "), {"t.json", "not JSON"});
  expect_words(refusal("\xff\xfe"), {"not JSON"});
  expect_words(refusal("[1, 2]"), {"not a JSON object"});
  expect_words(refusal("{}"), {"no 'model'", "tokenizer_config.json"});
  expect_words(refusal(std::string(1 << 20, '[')), {"t.json", "in each other"});
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  expect_words(refusal(deep), {"in each other"});
  std::string wide = "[0";
  while (wide.size() < 40 << 20) wide += ",0,0,0,0,0,0,0,0";
  expect_words(refusal(wide), {"more values"});
  expect_words(refusal(changed("gpt2", "/version", "2.0")), {"version = \"2.0\"", "1.0"});
  expect_words(refusal(changed("gpt2", "/wordpieces", 3)), {"wordpieces = 3", "not known"});
}

TEST(Tokenizer, ModelsOfOtherKindsAreRefused) {
  const auto model = [](const std::string& key, const Json& value) {
    return refusal(changed("gpt2", "/model/" + key, value));
  };
  expect_words(model("type", "WordPiece"), {"t.json", "model.type = \"WordPiece\"", "BPE"});
  expect_words(model("type", 7), {"model.type = 7", "must be a text"});
  expect_words(model("dropout", 0.1), {"model.dropout = 0.1"});
  expect_words(model("byte_fallback", true), {"model.byte_fallback = true", "byte-level"});
  expect_words(model("byte_fallback", "no"), {"byte_fallback = \"no\"", "true or false"});
  expect_words(model("end_of_word_suffix", "</w>"), {"end_of_word_suffix = \"</w>\""});
  expect_words(model("continuing_subword_prefix", "##"), {"prefix = \"##\""});
  expect_words(model("scores", Json::array()), {"model.scores = []", "not known"});
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"dropout", 0.0}, {"end_of_word_suffix", ""}, {"unk_token", "?"}, {"type", nullptr}}) {
    EXPECT_EQ(model(key, value), "");
  }
}

TEST(Tokenizer, MalformedVocabulariesAndMergesAreRefused) {
  const auto model = [](const std::string& key, const Json& value) {
    return refusal(changed("gpt2", "/model/" + key, value));
  };
  expect_words(model("vocab", Json::array()), {"model.vocab = []", "object"});
  expect_words(model("vocab", Json::object()), {"model.vocab = {}", "no tokens"});
  expect_words(model("vocab", nullptr), {"no 'vocab'"});
  expect_words(model("vocab/q", -1), {"model.vocab.q = -1", "whole one"});
  expect_words(model("vocab/q", 4294967296), {"model.vocab.q = 4294967296"});
  expect_words(model("vocab/q", 1.5), {"model.vocab.q = 1.5"});
  expect_words(model("merges", 3), {"model.merges = 3", "list"});
  expect_words(model("merges/5", "abc"), {"model.merges[5] = \"abc\"", "\"a b\""});
  expect_words(model("merges/5", "a b c"), {"merges[5]"});
  expect_words(model("merges/5", {"a", "b", "c"}), {"merges[5]"});
  expect_words(model("merges/5", {"a", 1}), {"merges[5]"});
  expect_words(model("merges/5", "Q Z"), {"merges[5] = \"Q Z\"", "no token 'QZ'"});
  expect_words(model("merges/5", {"日", "a"}), {"no token '日'"});
  auto json = read("gpt2");
  json["model"]["vocab"].erase("!");
  EXPECT_EQ(refusal(json.dump(), "Once"), "");  // only what is needed must be there
  expect_words(refusal(json.dump(), "Once!"), {"t.json", "byte 33", "'!'"});
}

TEST(Tokenizer, MalformedStepsAreRefused) {
  const auto step = [](const std::string& pointer, const Json& value) {
    return refusal(changed("llama3", pointer, value));
  };
  const std::string first = "/pre_tokenizer/pretokenizers/0/";
  expect_words(step("/pre_tokenizer", nullptr), {"pre_tokenizer = null", "ByteLevel"});
  expect_words(step("/pre_tokenizer/type", "Metaspace"), {"type = \"Metaspace\"", "ByteLevel"});
  expect_words(step("/pre_tokenizer/pretokenizers", Json::array()), {"pretokenizers = []"});
  expect_words(step(first + "type", "Whitespace"), {"pretokenizers[0].type = \"Whitespace\""});
  expect_words(step(first + "behavior", "Isolate"), {"behavior = \"Isolate\"", "Isolated"});
  expect_words(step(first + "pattern", "x"), {"pattern = \"x\"", "object"});
  expect_words(step(first + "pattern/Regex", "(a"), {"pattern.Regex = \"(a\"", "parenthesis"});
  expect_words(
      step("/pre_tokenizer/pretokenizers/1", read("llama3")["pre_tokenizer"]["pretokenizers"][0]),
      {"pretokenizers[1]", "ByteLevel"});
  expect_words(step("/normalizer", {{"type", "NFKC"}}), {"normalizer.type = \"NFKC\"", "NFC"});
  expect_words(
      refusal(changed("llama3", first + "pattern/Regex", "(a+a+)+$"), std::string(500, 'a') + "b"),
      {"pattern.Regex", "too costly"});
}

TEST(Tokenizer, MalformedAddedTokensAreRefused) {
  const auto added = [](const std::string& pointer, const Json& value) {
    return refusal(changed("llama3", "/added_tokens" + pointer, value));
  };
  expect_words(added("", 1), {"added_tokens = 1", "list"});
  expect_words(added("/0", "x"), {"added_tokens[0] = \"x\"", "object"});
  expect_words(added("/1/id", 77), {"added_tokens[1].id = 77", "<|end_of_text|>", "501"});
  expect_words(added("/1/content", "<|begin_of_text|>"), {"[1].content", "twice"});
  expect_words(added("/1/content", std::string(5000, 'x')), {"[1].content", "too long"});
  expect_words(added("/1/lstrip", "yes"), {"[1].lstrip = \"yes\""});
  expect_words(added("/1/glued", true), {"[1].glued = true", "not known"});
  expect_words(
      refusal(changed("odd", "/added_tokens/5/content", "e\u0301")), {"[5].content", "NFC"});
}

TEST(Tokenizer, TextsThatAreNoUtf8AreRefusedWithThePlace) {
  const auto json = read("gpt2").dump();
  for (const char* bad :
       {"\xff", "\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
        "\xf0\x9f\xa6"}) {
    expect_words(refusal(json, "0123456789 é" + std::string(bad)), {"story.txt", "byte 13 "});
  }
  expect_words(
      refusal(read("odd").dump(), "cafe <mask> cafe\u0301"),
      {"story.txt", "byte 16 ", "U+0301", "NFC"});
}

TEST(Tokenizer, PatternsMeanWhatOnigurumaMeans) {
  EXPECT_EQ(pcre_from_oniguruma("[^\\r\\n\\p{L}]?\\p{Han}+"), "[^\\r\\n\\p{L}]?\\p{sc:Han}+");
  EXPECT_EQ(pcre_from_oniguruma("\\u00e9\\x{1F600}{2}{"), "\\x{00e9}\\x{1F600}{2}{");
  EXPECT_EQ(pcre_from_oniguruma("\\d\\[(?i:a)"), "\\p{Nd}\\[(?i:a)");
  for (const char* refused :
       {"\\w+",    "\\bx",  "\\h",  "(?<name>a)", "(?m:.)", "a(?i)b", "[[a]b]",
        "[a&&b]",  "[]a]",  "[a",   "a{1,3}+",    "a{2}?",  "a{,3}",  "(a)\\1",
        "\\xe9",   "\\p{L", "\\pL", "\\p{L2}",    "\\",     "\\é",    "(*UTF)a",
        "\\Qa\\E", "\\Ka",  "(?R)", "\\u12"}) {
    EXPECT_THROW(pcre_from_oniguruma(refused), std::invalid_argument) << refused;
  }
}

}  // namespace
}  // namespace sherd
