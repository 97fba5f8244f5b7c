// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/families.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/huggingface/config_file.h"
#include "models/hybrid/huggingface.h"
#include "models/llama/huggingface.h"
#include "models/moe/huggingface.h"

namespace sherd {
namespace {

using Json = nlohmann::ordered_json;

/// A family of models that transformers knows, and how its config.json is read.
struct Family {
  const char* type;
  const char* architecture;
  ModelOptions (*read)(const ConfigFile& config);
};

template <auto kRead>
ModelOptions read_as(const ConfigFile& config) {
  return kRead(config);
}

constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", read_as<read_llama>},
    {"mistral", "MistralForCausalLM", read_as<read_mistral>},
    {"qwen2", "Qwen2ForCausalLM", read_as<read_qwen2>},
    {"qwen3", "Qwen3ForCausalLM", read_as<read_qwen3>},
    {"mixtral", "MixtralForCausalLM", read_as<read_mixtral>},
    {"qwen3_moe", "Qwen3MoeForCausalLM", read_as<read_qwen3_moe>},
    {"olmoe", "OlmoeForCausalLM", read_as<read_olmoe>},
    {"bamba", "BambaForCausalLM", read_as<read_bamba>},
};

/// By architectures; without that entry by model_type; without both it is a Llama.
const Family& family_of(const ConfigFile& config) {
  const bool by_type = config.words("architectures").empty();
  const auto type = config.word("model_type");
  if (by_type && type.empty()) return kFamilies[0];
  const char* key = by_type ? "model_type" : "architectures";
  std::string known;
  for (const auto& family : kFamilies) {
    const auto* name = by_type ? family.type : family.architecture;
    const auto wanted = by_type ? std::vector<std::string>{type} : config.words(key);
    if (wanted == std::vector<std::string>{name}) return family;
    known += std::string(known.empty() ? "" : ", ") + name;
  }
  config.refuse(key, "only one of these is supported: " + known);
}

ModelOptions options_of(const ConfigFile& config) {
  const auto& family = family_of(config);
  config.require("model_type", family.type);
  return family.read(config);
}

Json entries_of(const ModelOptions& options) {
  if (const auto* moe = std::get_if<MoeOptions>(&options)) return moe_config(*moe);
  if (const auto* hybrid = std::get_if<HybridOptions>(&options)) return bamba_config(*hybrid);
  return llama_config(std::get<LlamaOptions>(options));
}

const LlamaOptions& base_of(const ModelOptions& options) {
  return base_of(const_cast<ModelOptions&>(options));
}

}  // namespace

ModelOptions read_model_options(const std::string& folder) {
  const auto path = std::filesystem::path(folder) / "config.json";
  const auto json = read_json(path);
  auto options = options_of(ConfigFile(json, path.string()));
  base_of(options).config = json.dump();
  return options;
}

namespace {

bool is_rotary(const std::string& key) {
  return key.starts_with("rope_") || key == "partial_rotary_factor";
}

}  // namespace

std::string config_json(const ModelOptions& options) {
  auto config = entries_of(options);
  const auto& text = base_of(options).config;
  if (!text.empty()) {
    auto source = Json::parse(text);
    // Overwrites only entries whose options have changed since the file was read. Those of rotary
    // embeddings belong together: transformers 5 has them all in rope_parameters.
    const auto before = entries_of(options_of(ConfigFile(source, "config.json")));
    const auto changed = [&](const std::string& key) {
      return !before.contains(key) || before.at(key) != config.at(key);
    };
    bool turns_changed = false;
    for (const auto& [key, value] : config.items()) {
      turns_changed = turns_changed || (is_rotary(key) && changed(key));
    }
    if (turns_changed) source.erase("rope_parameters");
    for (const auto& [key, value] : config.items()) {
      if (!changed(key) && !(turns_changed && is_rotary(key))) continue;
      if (key == "num_hidden_layers") source.erase("layer_types");
      source[key] = value;
    }
    config = std::move(source);
  }
  return config.dump(2) + "\n";
}

}  // namespace sherd
