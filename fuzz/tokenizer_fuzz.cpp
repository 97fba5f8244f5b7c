// SPDX-License-Identifier: Apache-2.0
// Any bytes are a tokenizer.json, or edits of a good one, and a text. Either is refused in words,
// or the text gets tokens of the vocabulary.
#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "data/tokenizer/byte_symbols.h"
#include "data/tokenizer/tokenizer.h"

namespace {

using Json = nlohmann::json;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  size_t number() { return at_ < size_ ? data_[at_++] : 0; }
  template <class T, size_t N>
  const T& one_of(const std::array<T, N>& list) {
    return list[number() % N];
  }
  std::string rest() {
    std::string text(reinterpret_cast<const char*>(data_) + at_, size_ - at_);
    at_ = size_;
    return text;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

Json added(uint32_t id, const char* content, bool odd) {
  return {{"id", id},      {"content", content}, {"single_word", odd}, {"lstrip", odd},
          {"rstrip", odd}, {"normalized", odd},  {"special", !odd}};
}

Json good() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[sherd::symbol_of(static_cast<uint8_t>(byte))] = byte;
  }
  for (const auto& [token, id] : std::array<std::pair<const char*, int>, 4>{
           {{"ab", 256}, {"abab", 257}, {"aa", 258}, {"Ġab", 259}}}) {
    vocab[token] = id;
  }
  const Json split = {
      {"type", "Split"},
      {"pattern", {{"Regex", "\\p{L}+|\\s+"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {
      {"version", "1.0"},
      {"added_tokens", {added(260, "<end>", false), added(261, "<e", true)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", {"a b", "ab ab", Json{"a", "a"}, "Ġ ab"}}}}};
}

constexpr std::array<const char*, 26> kPlaces{
    "/version",
    "/normalizer",
    "/normalizer/type",
    "/added_tokens",
    "/added_tokens/0",
    "/added_tokens/0/content",
    "/added_tokens/1/content",
    "/added_tokens/1/id",
    "/added_tokens/1/lstrip",
    "/added_tokens/0/rstrip",
    "/pre_tokenizer",
    "/pre_tokenizer/type",
    "/pre_tokenizer/pretokenizers",
    "/pre_tokenizer/pretokenizers/0/pattern",
    "/pre_tokenizer/pretokenizers/0/pattern/Regex",
    "/pre_tokenizer/pretokenizers/0/behavior",
    "/pre_tokenizer/pretokenizers/0/invert",
    "/pre_tokenizer/pretokenizers/1/add_prefix_space",
    "/pre_tokenizer/pretokenizers/1/use_regex",
    "/model/type",
    "/model/ignore_merges",
    "/model/vocab",
    "/model/vocab/a",
    "/model/vocab/ab",
    "/model/merges",
    "/model/merges/1"};

constexpr std::array<const char*, 24> kValues{
    "null",
    "true",
    "false",
    "0",
    "-1",
    "259",
    "4294967295",
    "4294967296",
    "1e400",
    "\"\"",
    "\"a\"",
    "\"a b\"",
    "\"NFC\"",
    "[]",
    "{}",
    "[[]]",
    "{\"type\":\"NFC\"}",
    "\"Removed\"",
    "\"Contiguous\"",
    "\"MergedWithNext\"",
    "\"MergedWithPrevious\"",
    "[\"a\",\"a\"]",
    "{\"String\":\"b\"}",
    "\"ByteLevel\""};

constexpr std::array<const char*, 32> kPatterns{
    "a",     "b",   "\\s", "\\S", "\\p{L}",  "\\p{^N}", "\\P{Han}", ".",  "[",   "^",  "]",
    "(",     "(?:", "(?=", "(?!", "(?<=",    "(?i:",    ")",        "|",  "*",   "+",  "?",
    "{1,3}", "$",   "\\d", "\\",  "\\x{e9}", "é",       "-",        "&&", "\\K", "(?>"};

constexpr std::array<const char*, 16> kTexts{
    "a",     "b",  "ab", " ",  "\n",   "é",  "\xCC\x81", "\xF0\x9F\xA6\x80",
    "<end>", "<e", "1",  "日", "\xFF", "'s", ".",        "\xE3\x80\x80"};

std::string joined(Bytes& bytes, const auto& parts, size_t most) {
  std::string text;
  for (size_t count = bytes.number() % most; count > 0; --count) text += bytes.one_of(parts);
  return text;
}

std::string json_from(Bytes& bytes) {
  static const Json kGood = good();
  auto json = kGood;
  const size_t kind = bytes.number() % 8;
  if (kind == 0) return bytes.rest();
  for (size_t edits = bytes.number() % 4; edits > 0; --edits) {
    const Json::json_pointer place(bytes.one_of(kPlaces));
    const std::string text = bytes.one_of(kValues);
    try {
      json[place] = Json::parse(text);
    } catch (const Json::exception&) {
      // An earlier edit has removed the place, or the value is no JSON.
    }
  }
  if (kind < 4) {
    try {
      json["/pre_tokenizer/pretokenizers/0/pattern/Regex"_json_pointer] =
          joined(bytes, kPatterns, 10);
    } catch (const Json::exception&) {
    }
  }
  auto text = json.dump();
  if (kind == 4) {
    for (size_t edits = bytes.number() % 4; edits > 0; --edits) {
      text[(bytes.number() << 8 | bytes.number()) % text.size()] =
          static_cast<char>(bytes.number());
    }
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  const auto json = json_from(bytes);
  const auto text = bytes.number() % 8 == 0 ? bytes.rest() : joined(bytes, kTexts, 128);
  try {
    sherd::Tokenizer tokenizer("fuzz", json);
    const auto tokens = tokenizer.encode(text);
    for (const uint32_t token : tokens) {
      if (token >= tokenizer.vocab()) {
        std::fprintf(stderr, "token %u of a vocabulary of %ld\n", token, long{tokenizer.vocab()});
        std::abort();
      }
    }
    if (tokenizer.encode(text) != tokens) {
      std::fprintf(stderr, "the same text has other tokens the second time\n");
      std::abort();
    }
  } catch (const c10::ValueError&) {
    // Refused in words: as good an answer.
  }
  return 0;
}
