// SPDX-License-Identifier: Apache-2.0
#include "sherd/train/configuration.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>

#include "train/keys.h"
#include "train/nearest_word.h"
#include "train/toml_table.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string number(double value) {
  std::ostringstream out;
  out << std::setprecision(17) << value;
  const auto text = out.str();
  std::ostringstream brief;
  brief << value;
  return std::stod(brief.str()) == value ? brief.str() : text;
}

std::string written(int64_t value) {
  return std::to_string(value);
}
std::string written(bool value) {
  return value ? "true" : "false";
}
std::string written(double value) {
  return number(value);
}
std::string written(const std::string& value) {
  return quoted(value);
}
std::string written(const std::vector<double>& values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(number(value));
  return "[" + join(words, ", ") + "]";
}
template <class T>
std::string written(const std::optional<T>& value) {
  return value ? written(*value) : "";
}

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

/// Takes values out of a table, and notes what is wrong with them.
class Reader {
 public:
  explicit Reader(std::vector<std::string>& problems) : problems_(problems) {}

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
  template <class Section>
  void read_section(const std::string& section, const TomlTable& table, Section& into) {
    std::vector<std::string> known;
    keys(into, [&](const char* name, auto& value, const Key& key) {
      known.emplace_back(name);
      const auto whole = section + "." + name;
      if (const auto* inner = table.table(name)) {
        problem(inner->place(), whole, "{…}", "it is no section but one value");
      } else if (const auto* found = table.value(name)) {
        take(*found, whole, value, key);
      }
    });
    refuse_unknown(table, section + ".", known);
  }

  void refuse_unknown(
      const TomlTable& table, const std::string& prefix, const std::vector<std::string>& known) {
    for (const auto& [name, place, text] : table.entries()) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const auto near = nearest_word(name, known);
      problem(
          place, prefix + name, text,
          near ? "there is no such key; did you mean " + prefix + *near + "?"
               : "there is no such key; there are " + join(known, ", "));
    }
  }

  template <class T>
  void take(
      const TomlValue& found, const std::string& name, std::optional<T>& into, const Key& key) {
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
  fs::path folder_;
};

std::string is(const char* name, int64_t value) {
  return std::string(name) + " = " + std::to_string(value);
}

/// require(condition, problem).
template <class Require>
void check_model(const ModelSection& model, const Require& require) {
  const auto divides = [&](const char* name, int64_t part, const char* of, int64_t whole) {
    require(whole % part == 0, is(name, part) + ": it must divide " + is(of, whole));
  };
  if (model.from) {
    require(
        model.kind == "llama",
        "model.kind = " + written(model.kind) + ": only a llama can be taken from a folder");
    return;
  }
  divides("model.heads", model.heads, "model.dim", model.dim);
  require(
      model.dim % model.heads != 0 || model.dim / model.heads % 2 == 0,
      is("model.heads", model.heads) +
          ": a head's width, dim / heads, must be even for rotary positions; it is " +
          std::to_string(model.dim / model.heads));
  if (model.kv_heads != 0) divides("model.kv_heads", model.kv_heads, "model.heads", model.heads);
  if (model.kind == "moe" || model.kind == "hybrid") {
    require(
        model.top_k <= model.experts, is("model.top_k", model.top_k) + ": it must be at most " +
                                          is("model.experts", model.experts));
  }
  if (model.kind == "hybrid") {
    require(
        !model.pattern.empty() && model.pattern.find_first_not_of("M*-E") == std::string::npos,
        "model.pattern = " + written(model.pattern) +
            ": it must be letters out of M (Mamba-2), * (attention), - (feed-forward), E "
            "(experts)");
    divides("model.ssm_head_dim", model.ssm_head_dim, "2 model.dim", 2 * model.dim);
    divides(
        "model.ssm_groups", model.ssm_groups, "Mamba-2's heads, 2 dim / ssm_head_dim",
        2 * model.dim / model.ssm_head_dim);
  }
  if (model.kind == "vlm") {
    divides("model.patch", model.patch, "model.image_size", model.image_size);
    divides("model.vision_heads", model.vision_heads, "model.vision_dim", model.vision_dim);
    require(
        model.image_token < model.vocab, is("model.image_token", model.image_token) +
                                             ": it must be below " +
                                             is("model.vocab", model.vocab));
  }
}

/// What no key can know alone.
void check_together(const Configuration& all, std::vector<std::string>& problems) {
  const auto require = [&](bool fine, const std::string& text) {
    if (!fine) problems.push_back(text);
  };
  const auto& [model, data, shard, precision, optim, train, device] = all;
  check_model(model, require);
  require(
      data.tokens.has_value() != data.text.has_value(),
      data.tokens
          ? "data.text = " + written(data.text) + ": give data.tokens or data.text, not both"
          : "data: give data.tokens = \"file.bin\" or data.text = \"file.txt\"");
  const auto images = [&](const char* key, const auto& value, bool wanted) {
    require(
        !value || model.kind == "vlm",
        std::string(key) + " = " + written(value) + ": only a model of kind \"vlm\" sees images");
    require(
        value || !wanted || model.kind != "vlm",
        std::string(key) + ": a model of kind \"vlm\" needs it");
  };
  images("data.images", data.images, true);
  images("data.validation_images", data.validation_images, data.validation.has_value());
  require(
      device.emulate == 0 || device.ranks == 1, is("device.emulate", device.emulate) +
                                                    ": an emulated world has one process, but " +
                                                    is("device.ranks", device.ranks));
  const bool parts = precision.compute || precision.main || precision.gradient || precision.reduce;
  require(
      !precision.recipe || !parts,
      "precision.recipe = " + written(precision.recipe) +
          ": a recipe sets compute, main, gradient and reduce; remove those keys, or the recipe");
  require(
      optim.warmup <= train.steps,
      is("optim.warmup", optim.warmup) + ": it must be at most " + is("train.steps", train.steps));
  require(
      train.validate_every == 0 || data.validation.has_value(),
      is("train.validate_every", train.validate_every) +
          ": there is nothing to validate with; give data.validation");
}

}  // namespace

ConfigurationError::ConfigurationError(std::vector<std::string> problems)
    : problems_(std::move(problems)), text_(join(problems_, "\n")) {}

Configuration read_configuration(
    const std::string& path, const std::vector<std::string>& overrides) {
  Configuration result;
  std::vector<std::string> problems;
  Reader reader(problems);
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

std::string to_text(const Configuration& configuration) {
  std::string text;
  sections(configuration, [&](const char* name, const auto& section) {
    text += std::string(text.empty() ? "" : "\n") + "[" + name + "]\n";
    keys(section, [&](const char* key, const auto& value, const Key&) {
      const auto shown = written(value);
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
      const auto shown = written(value);
      const auto range = range_of(about);
      out << "  " << key << (shown.empty() ? "" : " = " + shown) << "\n      " << about.meaning
          << (range.empty() ? "" : "; " + range) << "\n";
    });
  });
  return out.str();
}

}  // namespace sherd
