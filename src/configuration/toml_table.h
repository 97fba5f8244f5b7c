// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// A value of a TOML file: every type that it can be read as, its text, and its place.
struct TomlValue {
  std::optional<int64_t> integer{};
  std::optional<double> real{};  ///< also set for whole numbers
  std::optional<bool> boolean{};
  std::optional<std::string> string{};
  std::optional<std::vector<double>> reals{};
  std::optional<std::vector<std::string>> strings{};  ///< an empty list is both
  std::string text{};
  std::string place{};  ///< "file:line"
};

/// A table of a TOML file, without the parser's own types: those take seconds to compile.
class TomlTable {
 public:
  struct Entry {
    std::string name;
    std::string place;
    std::string text;
  };
  /// Return a table or value by name; null if there is none, or if it is the other kind.
  const TomlTable* table(const std::string& name) const;
  const TomlValue* value(const std::string& name) const;
  /// Returns all entries, sorted by name.
  std::vector<Entry> entries() const;
  const std::string& place() const { return place_; }

  struct Member {
    std::string name;
    TomlValue value;
    std::unique_ptr<TomlTable> table;  ///< null: it is a value
  };
  TomlTable(std::string place, std::vector<Member> members)
      : place_(std::move(place)), members_(std::move(members)) {}

 private:
  std::string place_;
  std::vector<Member> members_;
};

/// Reads a file. Returns nothing, and adds a problem, if it can't be read.
std::optional<TomlTable> read_toml_file(
    const std::string& path, std::vector<std::string>& problems);
/// Reads "section.key=value"; quotes around a string may be left out.
std::optional<TomlTable> read_toml_override(
    const std::string& text, std::vector<std::string>& problems);
/// Reads TOML text; `name` is used in places.
std::optional<TomlTable> read_toml(
    const std::string& toml, const std::string& name, std::vector<std::string>& problems);

}  // namespace sherd
