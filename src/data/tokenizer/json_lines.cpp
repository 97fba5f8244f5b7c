// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/json_lines.h"

#include <c10/util/Exception.h>

#include "data/tokenizer/json_value.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

using LineJson = nlohmann::json;

std::string text_in(const LineJson& object, const char* key, const std::string& name) {
  const auto found = object.find(key);
  TORCH_CHECK_VALUE(
      found != object.end() && found->is_string(), "[tokenize] ", name, ": \"", key, "\" ",
      found == object.end() ? "is missing" : "= " + JsonValue::shown(*found),
      ": it must be a text");
  return found->get<std::string>();
}

std::vector<DocumentPart> segments_of(const LineJson& line, const std::string& name) {
  if (line.contains("text")) return {{text_in(line, "text", name)}};
  if (line.contains("prompt") || line.contains("completion")) {
    return {
        {text_in(line, "prompt", name), /*targets=*/false}, {text_in(line, "completion", name)}};
  }
  TORCH_CHECK_VALUE(
      line.contains("segments") && line["segments"].is_array(), "[tokenize] ", name,
      ": a line has \"text\", or \"prompt\" and \"completion\", or \"messages\" (in all lines of "
      "its "
      "file), but this one has ",
      line.empty() ? "no key" : "\"" + shortened(line.begin().key(), 40) + "\"");
  std::vector<DocumentPart> result;
  for (const auto& one : line["segments"]) {
    const bool fine = one.is_object() && one.contains("targets") && one["targets"].is_boolean();
    TORCH_CHECK_VALUE(
        fine, "[tokenize] ", name,
        ": a segment has \"text\" and \"targets\", which is true or "
        "false, but one is ",
        JsonValue::shown(one));
    result.push_back({text_in(one, "text", name), one["targets"].get<bool>()});
  }
  return result;
}

}  // namespace

void each_json_line(
    std::string_view text,
    const std::string& path,
    const std::function<void(const std::vector<DocumentPart>&, const std::string& name)>& each) {
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const auto line = text.substr(begin, end - begin);
    begin = end + 1;
    const auto name = path + ":" + std::to_string(++number);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = parse_json<LineJson>(line);
    TORCH_CHECK_VALUE(
        json.is_object(), "[tokenize] ", name, ": ", shortened(line, 60),
        " is not a JSON object: a JSONL file has one in each line");
    each(segments_of(json.value, name), name);
  }
}

}  // namespace sherd
