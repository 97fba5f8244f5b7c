// SPDX-License-Identifier: Apache-2.0
// The key "post_processor" of a tokenizer.json.
#include "data/tokenizer/tokenizer_file.h"

namespace sherd {
namespace {

/// The numbers of one of the template's special tokens.
void add_special(const JsonValue& processor, const JsonValue& piece, std::vector<uint32_t>& into) {
  const auto name = piece.at("id").text();
  const auto ids = processor.at("special_tokens").at(name.c_str()).at("ids");
  ids.require_list();
  for (size_t i = 0; i < ids.size(); ++i) into.push_back(ids.at(i).token());
}

void add_prefix(const JsonValue& processor, std::vector<uint32_t>& into) {
  const auto type = processor.at("type").text();
  if (type == "Sequence") {
    const auto list = processor.at("processors");
    list.require_list();
    for (size_t i = 0; i < list.size(); ++i) add_prefix(list.at(i), into);
    return;
  }
  if (type != "TemplateProcessing") return;
  const auto pieces = processor.at("single");
  pieces.require_list();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto special = pieces.at(i).find("SpecialToken");
    if (!special) return;  // the text; what follows it is no prefix
    add_special(processor, *special, into);
  }
}

}  // namespace

std::vector<uint32_t> parse_prefix(const JsonValue& file) {
  std::vector<uint32_t> result;
  if (const auto processor = file.find("post_processor")) add_prefix(*processor, result);
  return result;
}

}  // namespace sherd
