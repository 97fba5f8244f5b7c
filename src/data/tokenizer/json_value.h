// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace sherd {

/// A value of a JSON file, with the file and the key for what is said about it. It looks at JSON
/// that somebody else owns.
class JsonValue {
 public:
  using Json = nlohmann::json;
  JsonValue(const std::string& path, std::string key, const Json& json)
      : path_(path), key_(std::move(key)), json_(json) {}

  const Json& json() const { return json_; }
  std::string name() const { return path_ + ": " + key_; }  ///< for messages
  template <class... Words>
  void require(bool fine, const Words&... words) const {
    TORCH_CHECK_VALUE(
        fine, "[tokenizer] ", path_, ": ", key_, key_.empty() ? "" : " = ", shown(json_), ": ",
        words...);
  }

  /// The value of an object's key; nothing where it is not there or null.
  std::optional<JsonValue> find(const char* key) const;
  JsonValue at(const char* key) const;
  JsonValue at(size_t index) const;
  /// One that is at hand, as when going through all of them.
  JsonValue member(const std::string& key, const Json& value) const;
  size_t size() const { return json_.size(); }

  bool boolean() const;
  /// The value of a key that may be absent or null.
  bool boolean(const char* key, bool otherwise) const;
  std::string text() const;
  uint32_t token() const;  ///< a number that a token may have
  void require_object() const;
  void require_list() const;
  /// An object has no keys but these: others could change what the file means.
  void require_only(std::initializer_list<std::string_view> keys) const;

  /// Short, on one line, whatever is in it.
  static std::string shown(const Json& json);

 private:
  const std::string& path_;
  std::string key_;
  const Json& json_;
};

/// Parses a tokenizer.json. Throws, naming the file, if it is no JSON, or larger than one can be.
JsonValue::Json parse_tokenizer_json(const std::string& path, std::string_view text);

/// The beginning of a text, for a message.
std::string shortened(std::string_view text, size_t most);

}  // namespace sherd
