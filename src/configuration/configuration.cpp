// SPDX-License-Identifier: Apache-2.0
#include "configuration/configuration.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "configuration/checks.h"
#include "configuration/keys.h"
#include "configuration/renamed_keys.h"
#include "configuration/to_toml.h"
#include "configuration/toml_table.h"
#include "files/nearest_word.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// What a key wants, in words.
std::string range_of(const Key& key) {
  std::vector<std::string> words;
  if (!key.one_of.empty()) {
    for (const auto& word : key.one_of) words.push_back(quoted(word));
    return "one of " + join(words, ", ");
  }
  if (std::isfinite(key.least))
    words.push_back((key.above ? "above " : "at least ") + number(key.least));
  if (std::isfinite(key.most))
    words.push_back((key.below ? "below " : "at most ") + number(key.most));
  return join(words, " and ");
}

bool in_range(const Key& key, double value) {
  return std::isfinite(value) && (key.below ? value < key.most : value <= key.most) &&
         (key.above ? value > key.least : value >= key.least);
}

enum class OldKeys : uint8_t { refuse, accept };

/// Takes values out of a table, and notes what is wrong with them.
class ConfigurationReader {
 public:
  ConfigurationReader(std::vector<std::string>& problems, OldKeys old_keys)
      : problems_(problems), old_keys_(old_keys) {}

  /// The values of a source; relative paths in it are meant from `folder`.
  void read(const TomlTable& table, const fs::path& folder, Configuration& into) {
    folder_ = folder;
    std::vector<std::string> known;
    sections(into, [&](const char* name, auto& section) {
      known.emplace_back(name);
      if (const auto* found = table.table(name)) {
        read_section(name, *found, section);
      } else if (const auto* value = table.value(name)) {
        problem(
            value->place, name, value->text,
            "it is a section: write [" + std::string(name) + "] and its keys below");
      }
    });
    refuse_unknown(table, "", known);
  }

 private:
  /// Returns the old name of a key if files with it are read; else nothing.
  std::optional<std::string> accepted_old_name(std::string_view section, std::string_view name) {
    if (old_keys_ == OldKeys::refuse) return std::nullopt;
    const auto* renamed = find_renamed_key(
        [&](const RenamedKey& key) { return key.section == section && key.now == name; });
    if (!renamed) return std::nullopt;
    return std::string(renamed->before);
  }

  template <class Section>
  void read_section(const std::string& section, const TomlTable& table, Section& into) {
    std::vector<std::string> known;
    keys(into, [&](const char* name, auto& value, const Key& key) {
      known.emplace_back(name);
      const auto whole = section + "." + name;
      if (const auto* inner = table.table(name)) {
        problem(inner->place(), whole, "{…}", "it is a value, not a section");
      } else if (const auto* found = table.value(name)) {
        take(*found, whole, value, key);
      } else if (const auto before = accepted_old_name(section, name)) {
        known.push_back(*before);
        if (const auto* old = table.value(*before)) take(*old, whole, value, key);
      }
    });
    refuse_unknown(table, section, known);
  }

  void refuse_unknown(
      const TomlTable& table, const std::string& section, const std::vector<std::string>& known) {
    const auto prefix = section.empty() ? "" : section + ".";
    for (const auto& entry : table.entries()) {
      const auto& [name, place, text] = entry;
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const auto* renamed = find_renamed_key([&](const RenamedKey& key) {
        return key.section == section && key.before == entry.name;
      });
      if (renamed) {
        const auto now = prefix + std::string(renamed->now);
        problems_.push_back(
            place + ": " + prefix + name + " is now " + now + ": write " + now + " = " + text);
        continue;
      }
      const auto near = nearest_word(name, known);
      problem(
          place, prefix + name, text,
          near ? "unknown key; did you mean " + prefix + *near + "?"
               : "unknown key; the keys are " + join(known, ", "));
    }
  }

  /// An empty string unsets a key without a default.
  template <class T>
  void take(
      const TomlValue& found, const std::string& name, std::optional<T>& into, const Key& key) {
    if (found.string && found.string->empty()) return into.reset();
    T value{};
    if (take(found, name, value, key)) into = value;
  }

  bool take(const TomlValue& found, const std::string& name, int64_t& into, const Key& key) {
    if (!found.integer) return wrong_type(found, name, "a whole number");
    if (!in_range(key, static_cast<double>(*found.integer))) return out_of_range(found, name, key);
    into = *found.integer;
    return true;
  }

  bool take(const TomlValue& found, const std::string& name, double& into, const Key& key) {
    if (!found.real) return wrong_type(found, name, "a number");
    if (!in_range(key, *found.real)) return out_of_range(found, name, key);
    into = *found.real;
    return true;
  }

  bool take(const TomlValue& found, const std::string& name, bool& into, const Key&) {
    if (!found.boolean) return wrong_type(found, name, "true or false");
    into = *found.boolean;
    return true;
  }

  bool take(const TomlValue& found, const std::string& name, std::string& into, const Key& key) {
    if (!found.string) return wrong_type(found, name, "a string in quotes");
    const auto& words = key.one_of;
    if (!words.empty() && std::find(words.begin(), words.end(), *found.string) == words.end()) {
      return out_of_range(found, name, key);
    }
    into = *found.string;
    const bool relative = key.path && !into.empty() && fs::path(into).is_relative();
    if (relative && !folder_.empty()) into = (folder_ / into).lexically_normal().string();
    return true;
  }

  bool take(
      const TomlValue& found, const std::string& name, std::vector<double>& into, const Key& key) {
    if (!found.reals || found.reals->size() != into.size()) {
      return wrong_type(found, name, c_numbers(into.size()));
    }
    for (const double value : *found.reals) {
      if (!in_range(key, value)) return out_of_range(found, name, key);
    }
    into = *found.reals;
    return true;
  }

  bool take(
      const TomlValue& found, const std::string& name, std::vector<std::string>& into, const Key&) {
    if (!found.strings) return wrong_type(found, name, "a list of strings, such as [\"layer0.*\"]");
    into = *found.strings;
    return true;
  }

  static std::string c_numbers(size_t count) {
    return "a list of " + std::to_string(count) + " numbers";
  }

  bool wrong_type(const TomlValue& found, const std::string& name, const std::string& wanted) {
    problem(found.place, name, found.text, "it must be " + wanted);
    return false;
  }
  bool out_of_range(const TomlValue& found, const std::string& name, const Key& key) {
    problem(found.place, name, found.text, "it must be " + range_of(key));
    return false;
  }
  void problem(
      const std::string& place,
      const std::string& name,
      const std::string& value,
      const std::string& remedy) {
    problems_.push_back(place + ": " + name + " = " + value + ": " + remedy);
  }

  std::vector<std::string>& problems_;
  OldKeys old_keys_;
  fs::path folder_;
};

Configuration read_from(
    const std::string& path, const std::vector<std::string>& overrides, OldKeys old_keys) {
  Configuration result;
  result.source = path;
  std::vector<std::string> problems;
  ConfigurationReader reader(problems, old_keys);
  if (const auto file = read_toml_file(path, problems)) {
    reader.read(*file, fs::path(path).parent_path(), result);
  }
  for (const auto& text : overrides) {
    if (const auto one = read_toml_override(text, problems)) reader.read(*one, {}, result);
  }
  if (problems.empty()) check_together(result, problems);
  if (!problems.empty()) throw ConfigurationError(std::move(problems));
  return result;
}

}  // namespace

ConfigurationError::ConfigurationError(std::vector<std::string> problems)
    : problems_(std::move(problems)), text_(join(problems_, "\n")) {}

Configuration read_configuration(
    const std::string& path, const std::vector<std::string>& overrides) {
  return read_from(path, overrides, OldKeys::refuse);
}

Configuration read_earlier_configuration(const std::string& path) {
  return read_from(path, {}, OldKeys::accept);
}

std::string to_text(const Configuration& configuration) {
  std::string text;
  sections(configuration, [&](const char* name, const auto& section) {
    text += std::string(text.empty() ? "" : "\n") + "[" + name + "]\n";
    keys(section, [&](const char* key, const auto& value, const Key&) {
      const auto shown = to_toml(value);
      if (!shown.empty()) text += std::string(key) + " = " + shown + "\n";
    });
  });
  return text;
}

std::string configuration_help() {
  const Configuration defaults;
  std::ostringstream out;
  sections(defaults, [&](const char* name, const auto& section) {
    out << "[" << name << "]\n";
    keys(section, [&](const char* key, const auto& value, const Key& about) {
      const auto shown = to_toml(value);
      const auto range = range_of(about);
      out << "  " << key << (shown.empty() ? "" : " = " + shown) << "\n      " << about.meaning
          << (range.empty() ? "" : "; " + range) << "\n";
    });
  });
  return out.str();
}

}  // namespace sherd
