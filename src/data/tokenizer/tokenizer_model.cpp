// SPDX-License-Identifier: Apache-2.0
// The keys "model" and "pre_tokenizer" of a tokenizer.json.
#include <array>

#include "data/tokenizer/tokenizer_file.h"

namespace sherd {
namespace {

constexpr size_t kMostSplits = 64;

void require_byte_pairs(const JsonValue& model) {
  model.require_only(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto type = model.find("type")) {  // old files have none
    type->require(type->text() == "BPE", "only \"BPE\" is supported");
  }
  if (const auto dropout = model.find("dropout")) {
    dropout->require(
        dropout->json().is_number() && dropout->json().get<double>() == 0,
        "tokens that come out by chance are not supported; remove it");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto found = model.find(key);
    if (found) found->require(found->text().empty(), "only null and \"\" are supported");
  }
  if (const auto fallback = model.find("byte_fallback")) {
    fallback->require(
        !fallback->boolean(),
        "only byte-level tokenizers are supported, like those of GPT-2, Llama 3 and Qwen, and they "
        "have false");
  }
  // Every byte has a token of its own, so that none is ever unknown.
  if (const auto unknown = model.find("unk_token")) unknown->text();
  model.boolean("fuse_unk", false);
}

/// The two sides of a merge: "a b" or ["a", "b"].
std::array<std::string, 2> parse_sides(const JsonValue& merge) {
  const auto& json = merge.json();
  if (json.is_array()) {
    merge.require(
        json.size() == 2 && json[0].is_string() && json[1].is_string(),
        "a merge is \"a b\" or [\"a\", \"b\"]");
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  }
  const auto text = merge.text();
  const auto space = text.find(' ');
  merge.require(
      space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
      "a merge is \"a b\" or [\"a\", \"b\"]");
  return {text.substr(0, space), text.substr(space + 1)};
}

PairMerge parse_merge(const JsonValue& merge, const TextMap<uint32_t>& vocab) {
  const auto sides = parse_sides(merge);
  const auto id = [&](const std::string& token) {
    const auto found = vocab.find(token);
    merge.require(
        found != vocab.end(), "merge of '", shortened(sides[0], 60), "' and '",
        shortened(sides[1], 60), "': model.vocab has no token '", shortened(token, 60), "'");
    return found->second;
  };
  return {id(sides[0]), id(sides[1]), id(sides[0] + sides[1])};
}

Split::Behavior parse_behavior(const JsonValue& value) {
  const auto word = value.text();
  if (word == "Isolated") return Split::Behavior::isolated;
  if (word == "Removed") return Split::Behavior::removed;
  if (word == "Contiguous") return Split::Behavior::contiguous;
  if (word == "MergedWithPrevious") return Split::Behavior::with_previous;
  value.require(
      word == "MergedWithNext",
      "there are Isolated, Removed, Contiguous, MergedWithPrevious and MergedWithNext");
  return Split::Behavior::with_next;
}

Split parse_split(const JsonValue& value) {
  value.require_only({"type", "pattern", "behavior", "invert"});
  const auto pattern = value.at("pattern");
  pattern.require_only({"Regex", "String"});
  pattern.require(pattern.size() == 1, "it must have Regex or String");
  const auto regex = pattern.find("Regex");
  const auto source = regex ? *regex : pattern.at("String");
  return {
      .pattern = Pattern(
          source.text(), regex ? Pattern::Syntax::oniguruma : Pattern::Syntax::literal,
          source.name()),
      .behavior = parse_behavior(value.at("behavior")),
      .invert = value.boolean("invert", false)};
}

Split parse_digits(const JsonValue& value) {
  value.require_only({"type", "individual_digits"});
  return {
      .pattern = Pattern("\\p{N}", Pattern::Syntax::pcre, value.name()),
      .behavior = value.at("individual_digits").boolean() ? Split::Behavior::isolated
                                                          : Split::Behavior::contiguous};
}

/// Whether it was the ByteLevel that comes last.
bool parse_step(const JsonValue& value, PreTokenizer::Options& into) {
  const auto type = value.at("type");
  const auto word = type.text();
  if (word == "Split") {
    into.splits.push_back(parse_split(value));
    return false;
  }
  if (word == "Digits") {
    into.splits.push_back(parse_digits(value));
    return false;
  }
  type.require(
      word == "ByteLevel",
      "this pre_tokenizer is not supported; there are ByteLevel, and a Sequence of Split and "
      "Digits with a ByteLevel at its end");
  value.require_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  into.prefix_space = value.at("add_prefix_space").boolean();
  into.gpt2 = value.boolean("use_regex", true);
  return true;
}

}  // namespace

TokenizerFile::Model parse_byte_pairs(const JsonValue& model) {
  require_byte_pairs(model);
  TokenizerFile::Model result;
  result.ignore_merges = model.boolean("ignore_merges", false);
  const auto vocab = model.at("vocab");
  vocab.require_object();
  vocab.require(vocab.size() > 0, "it has no tokens");
  result.vocab.reserve(vocab.size());
  for (const auto& [token, id] : vocab.json().items()) {
    result.vocab.emplace(token, vocab.member(token, id).token());
  }
  const auto merges = model.at("merges");
  merges.require_list();
  result.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto merge = merges.at(i);
    const auto& json = merge.json();
    // The first line of a merges.txt, which some files have taken over.
    if (json.is_string() && json.get_ref<const std::string&>().starts_with("#version")) continue;
    result.merges.push_back(parse_merge(merge, result.vocab));
  }
  return result;
}

PreTokenizer::Options parse_pre_tokenizer(const JsonValue& file) {
  const auto value = file.find("pre_tokenizer");
  TORCH_CHECK_VALUE(
      value.has_value(), "[tokenizer] ", file.name(),
      "pre_tokenizer = null: only byte-level tokenizers are supported, whose pre_tokenizer is a "
      "ByteLevel, or a Sequence with one at its end");
  PreTokenizer::Options result;
  if (value->at("type").text() != "Sequence") {
    value->require(
        parse_step(*value, result), "it must be a ByteLevel, or a Sequence with one at its end");
    return result;
  }
  const auto list = value->at("pretokenizers");
  list.require_list();
  list.require(
      list.size() > 0 && list.size() <= kMostSplits,
      "it must have a ByteLevel at its end, and at "
      "most ",
      kMostSplits, " entries");
  for (size_t i = 0; i < list.size(); ++i) {
    const bool last = i + 1 == list.size();
    list.at(i).require(
        parse_step(list.at(i), result) == last,
        "a Sequence must have one ByteLevel, and that at its end");
  }
  return result;
}

}  // namespace sherd
