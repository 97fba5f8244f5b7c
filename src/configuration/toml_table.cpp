// SPDX-License-Identifier: Apache-2.0
#include "configuration/toml_table.h"

#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_WINDOWS_COMPAT 0
// toml++ 3.3 takes for granted, on malformed text, what it checks a line later.
#undef NDEBUG
#define TOML_ASSERT(expression) static_assert(true)
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace sherd {
namespace {

constexpr std::uintmax_t kLargestToml = 1
                                        << 20;  // bytes; nobody writes a configuration of that size

std::string place_of(const std::string& file, const toml::node& node) {
  return file + ":" + std::to_string(node.source().begin.line);
}

/// As somebody would write it.
std::string text_of(const toml::node& node) {
  std::ostringstream out;
  if (node.is_table()) {
    out << "{…}";
  } else if (const auto* real = node.as_floating_point()) {
    out << real->get();
  } else if (const auto* string = node.as_string()) {
    out << '"' << string->get() << '"';
  } else if (const auto* list = node.as_array()) {
    out << '[';
    for (size_t i = 0; i < list->size(); ++i) out << (i > 0 ? ", " : "") << text_of((*list)[i]);
    out << ']';
  } else {
    node.visit([&](const auto& value) { out << value; });
  }
  const auto text = out.str();
  return text.size() > 60 ? text.substr(0, 57) + "…" : text;
}

TomlValue value_of(const std::string& file, const toml::node& node) {
  TomlValue result;
  result.text = text_of(node);
  result.place = place_of(file, node);
  if (const auto* integer = node.as_integer()) {
    result.integer = integer->get();
    result.real = static_cast<double>(integer->get());
  } else if (const auto* real = node.as_floating_point()) {
    result.real = real->get();
  } else if (const auto* boolean = node.as_boolean()) {
    result.boolean = boolean->get();
  } else if (const auto* string = node.as_string()) {
    result.string = string->get();
  } else if (const auto* list = node.as_array()) {
    result.reals.emplace();
    result.strings.emplace();
    for (const auto& one : *list) {
      const auto number = one.is_boolean() ? std::nullopt : one.value<double>();
      const auto word = one.is_string() ? one.value<std::string>() : std::nullopt;
      if (result.reals && number) result.reals->push_back(*number);
      if (result.strings && word) result.strings->push_back(*word);
      if (!number) result.reals.reset();
      if (!word) result.strings.reset();
    }
  }
  return result;
}

TomlTable table_of(const std::string& file, const toml::table& from) {
  std::vector<TomlTable::Member> members;
  for (const auto& [name, node] : from) {
    TomlTable::Member member{std::string(name.str()), value_of(file, node), nullptr};
    if (const auto* inner = node.as_table()) {
      member.table = std::make_unique<TomlTable>(table_of(file, *inner));
    }
    members.push_back(std::move(member));
  }
  return {place_of(file, from), std::move(members)};
}

/// Where a string or a comment that begins at `begin` ends; the end of the text where it does not.
size_t end_of_quoted(const std::string& toml, size_t begin) {
  const char quote = toml[begin];
  if (quote == '#') return std::min(toml.find('\n', begin), toml.size());
  const std::string thrice(3, quote);
  const bool many = toml.compare(begin, 3, thrice) == 0;
  for (size_t i = begin + (many ? 3 : 1); i < toml.size(); ++i) {
    if (quote == '"' && toml[i] == '\\') {
      ++i;
    } else if (many ? toml.compare(i, 3, thrice) == 0 : toml[i] == quote || toml[i] == '\n') {
      return i + (many ? 3 : 1);
    }
  }
  return toml.size();
}

bool is_plain(char c) {
  return (c >= ' ' && c <= '~') || c == '\t' || c == '\n' || c == '\r';
}

/// The line of the first byte beyond plain ASCII that stands in neither a string nor a comment.
/// TOML has no use for one there, and toml++ 3.3 takes some for what they are not.
std::optional<int64_t> line_of_stray_byte(const std::string& toml) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";  // of UTF-8, which some editors write
  for (size_t i = toml.starts_with(kMark) ? kMark.size() : 0; i < toml.size(); ++i) {
    if (toml[i] == '"' || toml[i] == '\'' || toml[i] == '#') {
      i = end_of_quoted(toml, i) - 1;
    } else if (!is_plain(toml[i])) {
      const auto here = toml.begin() + static_cast<std::ptrdiff_t>(i);
      return 1 + std::count(toml.begin(), here, '\n');
    }
  }
  return std::nullopt;
}

}  // namespace

const TomlTable* TomlTable::table(const std::string& name) const {
  for (const auto& member : members_) {
    if (member.name == name) return member.table.get();
  }
  return nullptr;
}

const TomlValue* TomlTable::value(const std::string& name) const {
  for (const auto& member : members_) {
    if (member.name == name) return member.table ? nullptr : &member.value;
  }
  return nullptr;
}

std::vector<TomlTable::Entry> TomlTable::entries() const {
  std::vector<Entry> result;
  for (const auto& member : members_) {
    result.push_back({member.name, member.value.place, member.value.text});
  }
  return result;
}

std::optional<TomlTable> read_toml(
    const std::string& toml, const std::string& name, std::vector<std::string>& problems) {
  if (const auto line = line_of_stray_byte(toml)) {
    problems.push_back(
        name + ":" + std::to_string(*line) +
        ": a non-ASCII character outside a string: put the value in quotes");
    return std::nullopt;
  }
  try {
    return table_of(name, toml::parse(toml));
  } catch (const toml::parse_error& error) {
    problems.push_back(
        name + ":" + std::to_string(error.source().begin.line) + ": " +
        std::string(error.description()) + ": it must be TOML (https://toml.io)");
    return std::nullopt;
  }
}

std::optional<TomlTable> read_toml_file(
    const std::string& path, std::vector<std::string>& problems) {
  std::error_code code;
  const auto size = std::filesystem::file_size(path, code);
  if (code || !std::filesystem::is_regular_file(path)) {
    problems.push_back(path + ": it can't be read: give the path of a TOML file");
    return std::nullopt;
  }
  if (size > kLargestToml) {
    problems.push_back(
        path + ": it has " + std::to_string(size) + " bytes: give the path of a TOML file");
    return std::nullopt;
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    problems.push_back(path + ": it can't be read: check its permissions");
    return std::nullopt;
  }
  return read_toml(text.str(), path, problems);
}

std::optional<TomlTable> read_toml_override(
    const std::string& text, std::vector<std::string>& problems) {
  const auto place = "--set " + text;
  const auto equals = text.find('=');
  const auto dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals || dot == 0 ||
      dot + 1 == equals) {
    problems.push_back(place + ": write it as --set section.key=value");
    return std::nullopt;
  }
  const auto key = text.substr(0, equals + 1);
  std::vector<std::string> as_it_stands;
  if (auto table = read_toml(text, place, as_it_stands)) return table;
  std::string escaped;
  for (const char c : text.substr(equals + 1)) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  auto table = read_toml(key + "\"" + escaped + "\"", place, problems);
  return table;
}

}  // namespace sherd
