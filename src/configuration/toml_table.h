// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

/// A value of a TOML file: what it is (the ones that fit), how it is written, and where.
struct TomlValue {
  std::optional<int64_t> integer{};
  std::optional<double> real{};  ///< whole numbers, too
  std::optional<bool> boolean{};
  std::optional<std::string> string{};
  std::optional<std::vector<double>> reals{};
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
  /// Null where there is none, or it is something else.
  const TomlTable* table(const std::string& name) const;
  const TomlValue* value(const std::string& name) const;
  /// All of them, in the order of their names.
  std::vector<Entry> entries() const;
  const std::string& place() const { return place_; }

  struct Member {
    std::string name;
    TomlValue value;
    std::unique_ptr<TomlTable> table;  ///< or a value
  };
  TomlTable(std::string place, std::vector<Member> members)
      : place_(std::move(place)), members_(std::move(members)) {}

 private:
  std::string place_;
  std::vector<Member> members_;
};

/// Nothing where it can't be read; then a problem is added.
std::optional<TomlTable> read_toml_file(
    const std::string& path, std::vector<std::string>& problems);
/// "section.key=value", where quotes round a string may be left out.
std::optional<TomlTable> read_toml_override(
    const std::string& text, std::vector<std::string>& problems);
/// TOML as it stands in memory; `name` is for the places.
std::optional<TomlTable> read_toml(
    const std::string& toml, const std::string& name, std::vector<std::string>& problems);

}  // namespace sherd
