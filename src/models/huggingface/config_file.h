// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// Reads a JSON file of a Hugging Face folder: an object. Throws, naming the file.
nlohmann::ordered_json read_json(const std::filesystem::path& path);

/// The values of a config.json. All functions throw, naming file, key and value, if a value has
/// another type or is out of range, and if a key is missing that has no default.
class ConfigFile {
 public:
  /// `path` is for messages.
  ConfigFile(nlohmann::ordered_json json, std::string path)
      : json_(std::move(json)), path_(std::move(path)) {}

  /// Returns a whole number from `least` to 2^bits.
  int64_t count(
      const char* key,
      std::optional<int64_t> otherwise = {},
      int bits = 24,
      int64_t least = 1) const;
  /// Returns a number above 0.
  double real(const char* key, std::optional<double> otherwise = {}) const;
  /// Returns a number of at least 0.
  double weight(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  /// Returns a text; an empty one if there is none.
  std::string word(const char* key) const;
  /// Returns a list of texts; an empty one if there is none.
  std::vector<std::string> words(const char* key) const;
  /// Returns a list of whole numbers from 0 to `below` − 1; an empty one if there is none.
  std::vector<int64_t> indices(const char* key, int64_t below) const;
  /// Returns an object; nothing if there is none.
  std::optional<ConfigFile> inner(const char* key) const;
  /// Throws unless the value is `wanted`, or absent.
  void require(const char* key, const nlohmann::ordered_json& wanted) const;
  /// Returns whether the key is there, even if its value is null.
  bool has(const char* key) const { return json_.contains(key); }
  /// Throws with the key, its value and the reason.
  [[noreturn]] void refuse(const char* key, const std::string& reason) const;
  const std::string& path() const { return path_; }

 private:
  const nlohmann::ordered_json* find(const char* key, bool optional) const;

  nlohmann::ordered_json json_;
  std::string path_;
};

}  // namespace sherd
