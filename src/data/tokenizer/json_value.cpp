// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/json_value.h"

#include <algorithm>

#include "files/parse_json.h"

namespace sherd {
namespace {

constexpr int kDeepestNesting = 32;  // a tokenizer.json has about 7
constexpr size_t kMostValues =
    1 << 24;                   // values, keys, begins and ends; one has at most some millions
constexpr size_t kShown = 80;  // bytes of a value in a message

}  // namespace

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return std::string(text.substr(0, most)) + "…";
}

std::string JsonValue::shown(const Json& json) {
  if (json.is_object()) return json.empty() ? "{}" : "{…}";
  if (json.is_array()) return json.empty() ? "[]" : "[…]";
  if (json.is_string()) return '"' + shortened(json.get_ref<const std::string&>(), kShown) + '"';
  return json.dump();
}

std::optional<JsonValue> JsonValue::find(const char* key) const {
  require_object();
  const auto found = json_.find(key);
  if (found == json_.end() || found->is_null()) return std::nullopt;
  return member(key, *found);
}

JsonValue JsonValue::member(const std::string& key, const Json& value) const {
  const auto name = shortened(key, kShown);
  return {path_, key_.empty() ? name : key_ + "." + name, value};
}

JsonValue JsonValue::at(const char* key) const {
  const auto found = find(key);
  require(found.has_value(), "it has no '", key, "'");
  return *found;
}

JsonValue JsonValue::at(size_t index) const {
  require_list();
  return {path_, key_ + "[" + std::to_string(index) + "]", json_.at(index)};
}

bool JsonValue::boolean() const {
  require(json_.is_boolean(), "it must be true or false");
  return json_.get<bool>();
}

bool JsonValue::boolean(const char* key, bool otherwise) const {
  const auto found = find(key);
  return found ? found->boolean() : otherwise;
}

std::string JsonValue::text() const {
  require(json_.is_string(), "it must be a text");
  return json_.get<std::string>();
}

uint32_t JsonValue::token() const {
  const bool fine = json_.is_number_unsigned() && json_.get<uint64_t>() <= UINT32_MAX;
  require(fine, "a token's number is a whole one from 0 to ", UINT32_MAX);
  return json_.get<uint32_t>();
}

void JsonValue::require_object() const {
  require(json_.is_object(), "it must be an object");
}

void JsonValue::require_list() const {
  require(json_.is_array(), "it must be a list");
}

void JsonValue::require_only(std::initializer_list<std::string_view> keys) const {
  require_object();
  for (const auto& [key, value] : json_.items()) {
    const bool known = std::find(keys.begin(), keys.end(), key) != keys.end();
    member(key, value)
        .require(known, "this key is not known, and could change what the file means");
  }
}

JsonValue::Json parse_tokenizer_json(const std::string& path, std::string_view text) {
  auto parsed = parse_json<JsonValue::Json>(text, {kDeepestNesting, kMostValues});
  using Problem = ParsedJson<JsonValue::Json>::Problem;
  TORCH_CHECK_VALUE(
      parsed.problem != Problem::not_json, "[tokenizer] ", path, " is not JSON (",
      shortened(parsed.parser_message, 200), "): give the tokenizer.json of a model");
  TORCH_CHECK_VALUE(
      parsed.problem == Problem::none, "[tokenizer] ", path, " has more ",
      parsed.problem == Problem::too_deep ? "lists and objects in each other" : "values",
      " than any tokenizer.json: it is none");
  return std::move(parsed.value);
}

}  // namespace sherd
