// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace sherd {

/// The most that a JSON file of some kind can have. Files from elsewhere may have more, to do harm:
/// the JSON library copies and prints values recursively, so thousands of levels overflow the
/// stack.
struct JsonLimits {
  int levels = 32;  ///< of lists and objects inside each other
  size_t values = std::numeric_limits<size_t>::max();
};

/// A JSON text after parsing.
template <class Json>
struct ParsedJson {
  enum class Problem : uint8_t { none, not_json, too_deep, too_many_values };

  bool is_object() const { return problem == Problem::none && value.is_object(); }

  Json value;  ///< null if there was a problem
  Problem problem = Problem::none;
  std::string parser_message;  ///< if it is not JSON
  /// The first key that the outermost object has twice; its last value counts.
  std::optional<std::string> repeated_key;
};

/// Parses a text within the limits. Never throws because of the text.
template <class Json>
ParsedJson<Json> parse_json(std::string_view text, const JsonLimits& limits = {}) {
  using Problem = typename ParsedJson<Json>::Problem;
  ParsedJson<Json> result;
  std::set<std::string> keys;
  size_t values = 0;
  const auto check = [&](int depth, typename Json::parse_event_t event, Json& value) {
    using Event = typename Json::parse_event_t;
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && depth >= limits.levels) throw Problem::too_deep;
    if (++values > limits.values) throw Problem::too_many_values;
    if (depth == 1 && event == Event::key) {
      const auto key = value.template get<std::string>();
      if (!keys.insert(key).second && !result.repeated_key) result.repeated_key = key;
    }
    return true;
  };
  try {
    result.value = Json::parse(text.begin(), text.end(), check);
  } catch (const typename Json::exception& error) {
    result.problem = Problem::not_json;
    result.parser_message = error.what();
  } catch (const Problem problem) {
    result.problem = problem;
  }
  return result;
}

/// Parses a file within the limits. A file that can't be read is not JSON.
template <class Json>
ParsedJson<Json> read_json(const std::filesystem::path& path, const JsonLimits& limits = {}) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return parse_json<Json>(text, limits);
}

}  // namespace sherd
