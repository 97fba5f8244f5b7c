// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/tokenize.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include "checkpoint/mapped_file.h"
#include "data/tokenizer/json_lines.h"
#include "data/tokenizer/token_writer.h"
#include "data/tokenizer/tokenizer.h"
#include "files/nearest_word.h"
#include "files/same_file.h"

namespace sherd {
namespace {

constexpr int64_t kMostOf16 = int64_t{1} << 16;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

/// That `out` may be written, before hours have gone into what goes there.
void check_out(const TokenizeOptions& options) {
  const auto& out = options.out;
  TORCH_CHECK_VALUE(!out.empty(), "[tokenize] there is no file to write to: give out");
  const auto slash = out.rfind('/');
  const auto folder = slash == std::string::npos ? "." : out.substr(0, slash + 1);
  struct stat about {};
  TORCH_CHECK_VALUE(
      stat(folder.c_str(), &about) == 0 && S_ISDIR(about.st_mode), "[tokenize] out = ", out,
      ": there is no folder ", folder, ": create it first");
  TORCH_CHECK_VALUE(
      stat(out.c_str(), &about) != 0 || S_ISREG(about.st_mode), "[tokenize] out = ", out,
      " exists and is not a regular file: choose another name");
  TORCH_CHECK_VALUE(
      !same_file(out, options.tokenizer), "[tokenize] out = ", out,
      " is the tokenizer: choose another name");
  for (const auto& text : options.texts) {
    TORCH_CHECK_VALUE(
        !same_file(out, text), "[tokenize] out = ", out,
        " is one of the texts: choose another name");
  }
}

/// All texts, before the first is tokenized: a name that is wrong is better known at once.
void check_texts(const std::vector<std::string>& texts) {
  TORCH_CHECK_VALUE(!texts.empty(), "[tokenize] there are no texts: give at least one file");
  for (const auto& path : texts) {
    const MappedFile file(path);
    TORCH_CHECK_VALUE(file.size() > 0, "[tokenize] ", path, " is empty: leave it out, or fill it");
  }
}

std::optional<uint32_t> end_token(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  if (!options.end) return std::nullopt;
  const auto& word = *options.end;
  const auto id = tokenizer.id_of(word);
  if (id) return id;
  std::vector<std::string> words;
  std::string listed;
  for (const auto& token : tokenizer.added()) {
    if (token.size() <= 2 * word.size()) words.push_back(token);  // others can't be near
    if (listed.size() < 200) listed += (listed.empty() ? "" : ", ") + token;
  }
  const auto nearest = nearest_word(word, words);
  TORCH_CHECK_VALUE(
      false, "[tokenize] end = ", word, ": ", options.tokenizer, " has no such token; ",
      nearest          ? "did you mean " + *nearest + "?"
      : listed.empty() ? "it has no special ones"
                       : "there are " + listed);
}

TokenFile::Kind kind_for(const TokenizeOptions& options, int64_t vocab) {
  const auto word = options.dtype.value_or(vocab <= kMostOf16 ? "uint16" : "uint32");
  TORCH_CHECK_VALUE(
      word == "uint16" || word == "uint32", "[tokenize] dtype = ", word,
      ": it must be uint16 or uint32");
  TORCH_CHECK_VALUE(
      word == "uint32" || vocab <= kMostOf16, "[tokenize] dtype = ", word, ": ", options.tokenizer,
      " has token numbers up to ", vocab - 1, ", and it holds those up to ", kMostOf16 - 1,
      ": take uint32");
  return word == "uint16" ? TokenFile::Kind::uint16 : TokenFile::Kind::uint32;
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  check_texts(options.texts);
  check_out(options);
  const MappedFile json(options.tokenizer);
  Tokenizer tokenizer(options.tokenizer, text_of(json));
  const auto end = end_token(options, tokenizer);
  const auto kind = kind_for(options, tokenizer.vocab());
  TokenizeResult result;
  result.vocab = tokenizer.vocab();
  result.dtype = kind == TokenFile::Kind::uint16 ? "uint16" : "uint32";
  using Form = TokenWriter::Form;
  TokenWriter writer(options.out, kind, options.plain ? Form::plain : Form::with_documents);
  // Returns the segments' bytes.
  const auto write = [&](const std::vector<DocumentPart>& segments, const std::string& name) {
    writer.begin_document();
    size_t bytes = 0;
    for (const auto& [text, targets] : segments) {
      TORCH_CHECK_VALUE(
          targets || !options.plain, "[tokenize] ", name,
          " has tokens that are no targets, which a plain file of numbers cannot say: leave out "
          "--plain");
      tokenizer.encode(
          text, name, [&](std::span<const uint32_t> some) { writer.write(some, targets); });
      bytes += text.size();
    }
    const bool ends = end && (segments.empty() || segments.back().targets);
    if (ends) writer.write({&*end, 1});
    return bytes;
  };
  for (const auto& path : options.texts) {
    const MappedFile file(path);
    if (!path.ends_with(".jsonl")) {
      writer.begin_document();
      tokenizer.encode(
          text_of(file), path, [&](std::span<const uint32_t> some) { writer.write(some); });
      if (end) writer.write({&*end, 1});
      result.bytes += static_cast<int64_t>(file.size());
      continue;
    }
    each_json_line(text_of(file), path, [&](const auto& segments, const std::string& name) {
      result.bytes += static_cast<int64_t>(write(segments, name));
    });
  }
  result.documents = writer.documents();
  result.targets = writer.targets();
  writer.finish();
  result.tokens = writer.size();
  return result;
}

}  // namespace sherd
