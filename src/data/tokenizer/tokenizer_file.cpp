// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/tokenizer_file.h"

#include <set>

#include "data/tokenizer/nfc.h"

namespace sherd {
namespace {

constexpr size_t kLargest = 128 << 20;     // bytes of a file; those of models have up to 40 MB
constexpr size_t kLongestAdded = 1 << 10;  // bytes of an added token

/// Whether texts are to be brought into NFC.
bool parse_normalizer(const JsonValue& file) {
  const auto normalizer = file.find("normalizer");
  if (!normalizer) return false;
  const char* const supported =
      "this normalizer is not supported; there are null, NFC and a Sequence of those";
  const auto is_nfc = [&](const JsonValue& one) {
    const auto type = one.at("type");
    type.require(type.text() == "NFC", supported);
    return true;
  };
  if (normalizer->at("type").text() != "Sequence") return is_nfc(*normalizer);
  const auto list = normalizer->at("normalizers");
  list.require_list();
  bool found = false;
  for (size_t i = 0; i < list.size(); ++i) found = is_nfc(list.at(i));
  return found;
}

AddedToken parse_added(const JsonValue& entry) {
  entry.require_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = entry.at("content").text();
  token.id = entry.at("id").token();
  token.single_word = entry.boolean("single_word", false);
  token.lstrip = entry.boolean("lstrip", false);
  token.rstrip = entry.boolean("rstrip", false);
  token.normalized = entry.boolean("normalized", !entry.boolean("special", false));
  return token;
}

/// The tokens of the file with the numbers that they get: those of the vocabulary, and new ones in
/// turn. (Hugging Face's library gives them so, whatever number the file says; a file that says
/// another means something that nobody can know.)
std::vector<AddedToken> parse_all_added(
    const JsonValue& file, const TextMap<uint32_t>& vocab, bool nfc) {
  std::vector<AddedToken> tokens;
  const auto list = file.find("added_tokens");
  if (!list) return tokens;
  list->require_list();
  std::set<std::string> contents;
  std::set<uint32_t> ids;
  size_t next = vocab.size();
  for (size_t i = 0; i < list->size(); ++i) {
    const auto entry = list->at(i);
    auto token = parse_added(entry);
    const auto content = entry.at("content");
    if (token.content.empty()) continue;  // nothing to find
    content.require(
        token.content.size() <= kLongestAdded, "an added token of ", token.content.size(),
        " bytes is too long; there may be ", kLongestAdded);
    content.require(contents.insert(token.content).second, "it is there twice");
    content.require(
        !nfc || !token.normalized || !first_not_nfc(token.content),
        "it is not in NFC, as the normalizer wants it; bringing it there is not supported");
    const auto known = vocab.find(token.content);
    const size_t id = known != vocab.end() ? known->second : next++;
    entry.at("id").require(
        id == token.id, "token '", shortened(token.content, 60), "' gets the number ", id,
        known != vocab.end() ? ", which model.vocab has for it"
                             : ", the next after the tokens of model.vocab",
        ": the file contradicts itself");
    entry.at("id").require(ids.insert(token.id).second, "another added token has this number");
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

TokenizerFile parse_tokenizer(const std::string& path, std::string_view json) {
  TORCH_CHECK_VALUE(
      json.size() <= kLargest, "[tokenizer] ", path, " has ", json.size(),
      " bytes; a tokenizer.json has at most ", kLargest);
  const auto parsed = parse_tokenizer_json(path, json);
  const JsonValue file(path, "", parsed);
  TORCH_CHECK_VALUE(
      parsed.is_object(), "[tokenizer] ", path,
      " is not a JSON object: give the tokenizer.json of a model");
  file.require_only(
      {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
       "post_processor", "decoder", "model"});
  if (const auto version = file.find("version")) {
    version->require(version->text() == "1.0", "only version \"1.0\" is known");
  }
  TokenizerFile result;
  const auto model = file.find("model");
  TORCH_CHECK_VALUE(
      model.has_value(), "[tokenizer] ", path,
      ": it has no 'model': give the tokenizer.json of a model, not its tokenizer_config.json");
  result.model = parse_byte_pairs(*model);
  result.nfc = parse_normalizer(file);
  result.pre_tokenizer = parse_pre_tokenizer(file);
  result.added = parse_all_added(file, result.model.vocab, result.nfc);
  result.prefix = parse_prefix(file);
  return result;
}

}  // namespace sherd
