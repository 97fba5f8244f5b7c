// SPDX-License-Identifier: Apache-2.0
#include "train/earlier_run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "configuration/keys.h"
#include "configuration/renamed_keys.h"
#include "configuration/setup.h"
#include "configuration/to_toml.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// The configuration in the checkpoint; else the one of its run's folder.
std::optional<Configuration> earlier_configuration(const fs::path& checkpoint) {
  for (const auto& path :
       {checkpoint / "configuration.toml", checkpoint.parent_path() / "configuration.toml"}) {
    std::error_code code;
    if (!fs::is_regular_file(path, code)) continue;
    try {
      return read_earlier_configuration(path.string());
    } catch (const ConfigurationError&) {
      return std::nullopt;  // of another version, or edited: nothing to compare with
    }
  }
  return std::nullopt;
}

/// Nothing where it is not known, such as in a checkpoint that was imported.
std::optional<int64_t> number_in_state(const fs::path& checkpoint, const char* name) {
  const auto state = read_json<nlohmann::json>(checkpoint / "state.json");
  if (!state.is_object()) return std::nullopt;
  const auto found = state.value.find(name);
  if (found == state.value.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

/// Keys that a model of this kind is built from; the others are rates and deviations, or unused.
bool shapes_the_model(const std::string& key, const std::string& kind) {
  static const std::set<std::string> always{
      "kind",     "dim",   "layers",  "heads",          "ffn",           "kv_heads", "head_dim",
      "qkv_bias", "vocab", "qk_norm", "qk_norm_across", "tie_embeddings"};
  static const std::set<std::string> experts{"experts", "expert_ffn", "shared_ffn"};
  static const std::set<std::string> hybrid{"pattern",    "ssm_state",  "ssm_head_dim",
                                            "ssm_groups", "ssm_expand", "ssm_width"};
  static const std::set<std::string> vision{"image_size",    "patch",        "vision_dim",
                                            "vision_layers", "vision_heads", "image_token"};
  const bool has_experts = kind == "moe" || kind == "hybrid";
  return always.contains(key) || (has_experts && experts.contains(key)) ||
         (kind == "hybrid" && hybrid.contains(key)) || (kind == "vlm" && vision.contains(key));
}

/// What the checkpoint's model is, if anything says so.
std::optional<ModelSection> model_of_checkpoint(
    const std::optional<Configuration>& earlier, const std::string& checkpoint) {
  if (earlier) return earlier->model;
  try {
    return resolved({.from = checkpoint});
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void check_same_model(
    const Configuration& configuration, const ModelSection& before, const std::string& checkpoint) {
  auto as_before = configuration;
  as_before.model = before;
  as_before.model.from = configuration.model.from;
  std::vector<std::string> differences;
  for (const auto& [key, now, then] : changed_keys(configuration, as_before)) {
    const std::string section = "model.";
    if (!key.starts_with(section)) continue;
    const auto name = key.substr(section.size());
    if (!shapes_the_model(name, configuration.model.kind)) continue;
    differences.push_back("the checkpoint has " + name + " " + then + ", " + key + " is " + now);
  }
  TORCH_CHECK_VALUE(
      differences.empty(), "[train] ", checkpoint,
      " belongs to another model: ", join(differences, "; "),
      ". Restore the keys, choose another train.out, or set train.resume = \"none\"");
}

}  // namespace

Configuration with_absolute_paths(Configuration configuration) {
  sections(configuration, [&](const char*, auto& section) {
    keys(section, [&](const char*, auto& value, const Key& key) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::optional<std::string>>) {
        if (key.path && value) value = fs::absolute(*value).lexically_normal().string();
      }
    });
  });
  return configuration;
}

std::vector<ChangedKey> changed_keys(const Configuration& now, const Configuration& before) {
  static const std::set<std::string> about_the_folder{"train.out", "train.resume"};
  const auto values_of = [](const Configuration& configuration) {
    std::vector<std::pair<std::string, std::string>> values;
    const auto from_anywhere = with_absolute_paths(configuration);
    sections(from_anywhere, [&](const char* name, const auto& section) {
      keys(section, [&](const char* key, const auto& value, const Key&) {
        values.emplace_back(std::string(name) + "." + key, to_toml(value));
      });
    });
    return values;
  };
  const auto mine = values_of(now), theirs = values_of(before);
  std::vector<ChangedKey> result;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] == theirs[i] || about_the_folder.contains(mine[i].first)) continue;
    result.push_back({mine[i].first, mine[i].second, theirs[i].second});
  }
  return result;
}

int64_t fingerprint_of(const TokenFile& file) {
  constexpr int64_t kSamples = 4096;
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  mix(static_cast<uint64_t>(file.size()));
  mix(static_cast<uint64_t>(file.kind()));
  // The beginning, the end, and places spread evenly between.
  const int64_t edge = std::min(file.size(), kSamples);
  for (int64_t i = 0; i < edge; ++i) {
    mix(file[i]);
    mix(file[file.size() - edge + i]);
  }
  const auto step = std::max<int64_t>(1, file.size() / 256);
  for (int64_t i = 0; i < file.size(); i += step) mix(file[i]);
  return static_cast<int64_t>(hash >> 1);
}

std::string compare_with_earlier_run(
    const Configuration& configuration, const std::string& checkpoint, int64_t data_fingerprint) {
  const auto earlier = earlier_configuration(checkpoint);
  if (const auto model = model_of_checkpoint(earlier, checkpoint)) {
    check_same_model(configuration, *model, checkpoint);
  }
  const auto changed = earlier ? changed_keys(configuration, *earlier) : std::vector<ChangedKey>{};
  for (const auto& [key, now, before] : changed) {
    TORCH_CHECK_VALUE(
        key != "model.frozen", "[train] ", checkpoint,
        " has optimizer state of other weights: ", key, " = ", now, ", was ", before,
        ". Restore it; to start another run from these weights, ",
        "set model.from = ", to_toml(checkpoint), " and another train.out");
  }
  std::vector<std::string> others;  // that make it another run
  const auto data = number_in_state(checkpoint, "data");
  for (const auto& [key, now, before] : changed) {
    const bool is_data = key == "data.tokens" || key == "data.text" || key == "data.images";
    // A file that was moved is the same data.
    const bool other_data = is_data && (key == "data.images" || !data);
    const bool other_samples = key == "data.documents" || key == "data.val_fraction";
    if (other_data || other_samples || key == "model.from") {
      others.push_back(
          key + " is " + (now.empty() ? "not set" : now) + " and was " +
          (before.empty() ? "not set" : before));
    }
  }
  if (data && *data != data_fingerprint) {
    const auto& section = configuration.data;
    others.push_back(
        (section.text ? "data.text = " + to_toml(section.text)
                      : "data.tokens = " + to_toml(section.tokens)) +
        " has other tokens than the data of the checkpoint");
  }
  const auto seed = number_in_state(checkpoint, "seed");
  // A checkpoint without a configuration was made by another program, which knew no seed of ours.
  if (earlier && seed && *seed != configuration.train.seed) {
    others.push_back(c10::str("train.seed is ", configuration.train.seed, " and was ", *seed));
  }
  TORCH_CHECK_VALUE(
      others.empty() || configuration.train.resume != "auto", "[train] ", checkpoint,
      " belongs to another run: ", join(others, "; "),
      ". Choose another train.out; to continue from these weights anyway, set train.resume = ",
      to_toml(checkpoint), "; to start over, train.resume = \"none\"");
  std::string lines;
  for (const auto& [key, now, before] : changed) {
    lines += "changed since " + checkpoint + ": " + key + " = " +
             (now.empty() ? "(not set)" : now) + ", was " +
             (before.empty() ? "(not set)" : before) + "\n";
  }
  return lines;
}

}  // namespace sherd
