// SPDX-License-Identifier: Apache-2.0
// Llama as a folder of Hugging Face's: config.json, and safetensors in one file or several.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "files/parse_json.h"
#include "models/llama/huggingface.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/models/llama.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr std::uintmax_t kLargest = 16 << 20;  // bytes of a JSON file
constexpr int kDeepest = 32;                   // levels of JSON

Json read_json(const fs::path& path) {
  std::error_code code;
  const auto size = fs::file_size(path, code);
  TORCH_CHECK_VALUE(
      !code, "[model.from] ", path.string(),
      " can't be read: model.from is a folder with config.json ",
      "and model.safetensors, as save_pretrained writes it");
  TORCH_CHECK_VALUE(
      size <= kLargest, "[model.from] ", path.string(), " has ", size,
      " bytes, too many for such a file");
  const MappedFile file(path.string());
  auto parsed = parse_json<Json>(
      {reinterpret_cast<const char*>(file.data()), file.size()}, {.levels = kDeepest});
  using Problem = ParsedJson<Json>::Problem;
  TORCH_CHECK_VALUE(
      parsed.problem != Problem::too_deep, "[model.from] ", path.string(), " is nested more than ",
      kDeepest, " levels deep, too deep for such a file");
  TORCH_CHECK_VALUE(
      parsed.problem != Problem::not_json, "[model.from] ", path.string(), " is not JSON (",
      parsed.parser_message, ")");
  TORCH_CHECK_VALUE(parsed.is_object(), "[model.from] ", path.string(), " is not a JSON object");
  return std::move(parsed.value);
}

/// The values of a config.json, each of the type and in the range that it must have.
class Config {
 public:
  Config(Json json, std::string path) : json_(std::move(json)), path_(std::move(path)) {}

  /// At most 2^bits.
  int64_t count(const char* key, std::optional<int64_t> otherwise = {}, int bits = 24) const {
    const auto* value = find(key, otherwise.has_value());
    if (!value) return *otherwise;
    const bool fine = value->is_number_integer() && value->get<int64_t>() > 0 &&
                      value->get<int64_t>() <= int64_t{1} << bits;
    TORCH_CHECK_VALUE(
        fine, "[model.from] ", path_, ": ", key, " = ", shown(*value),
        ": it must be a whole number above 0 and at most ", int64_t{1} << bits);
    return value->get<int64_t>();
  }
  double real(const char* key, std::optional<double> otherwise = {}) const {
    const auto* value = find(key, otherwise.has_value());
    if (!value) return *otherwise;
    TORCH_CHECK_VALUE(
        value->is_number() && value->get<double>() > 0, "[model.from] ", path_, ": ", key, " = ",
        shown(*value), ": it must be a number above 0");
    return value->get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    const auto* value = find(key, true);
    if (!value) return otherwise;
    TORCH_CHECK_VALUE(
        value->is_boolean(), "[model.from] ", path_, ": ", key, " = ", shown(*value),
        ": it must be true or false");
    return value->get<bool>();
  }
  void require(const char* key, const Json& wanted) const {
    const auto* value = find(key, true);
    TORCH_CHECK_VALUE(
        !value || *value == wanted, "[model.from] ", path_, ": ", key, " = ", shown(*value),
        ": only ", wanted.dump(), " is supported");
  }
  std::optional<Config> inner(const char* key) const {
    const auto* value = find(key, true);
    if (!value) return std::nullopt;
    TORCH_CHECK_VALUE(
        value->is_object(), "[model.from] ", path_, ": ", key, " = ", shown(*value),
        ": it must be an object");
    return Config(*value, path_ + ": " + key);
  }
  std::string word(const char* key) const {
    const auto* value = find(key, true);
    return value && value->is_string() ? value->get<std::string>() : "";
  }

 private:
  const Json* find(const char* key, bool optional) const {
    const auto found = json_.find(key);
    if (found != json_.end() && !found->is_null()) return &*found;
    TORCH_CHECK_VALUE(optional, "[model.from] ", path_, " has no ", key);
    return nullptr;
  }
  /// Without what is inside of what is inside: it may be as deep as the file is long.
  static std::string shown(const Json& value) {
    const bool deep = std::any_of(value.begin(), value.end(), [&](const Json& one) {
      return value.is_structured() && one.is_structured();
    });
    return deep ? (value.is_array() ? "[…]" : "{…}") : value.dump().substr(0, 60);
  }

  Json json_;
  std::string path_;
};

std::optional<RopeScaling> scaling_of(const Config& config) {
  // transformers 5 has all of it, the base too, in rope_parameters.
  auto scaling = config.inner("rope_parameters");
  if (!scaling) scaling = config.inner("rope_scaling");
  if (!scaling) return std::nullopt;
  auto kind = scaling->word("rope_type");
  if (kind.empty()) kind = scaling->word("type");
  if (kind.empty() || kind == "default") return std::nullopt;
  TORCH_CHECK_VALUE(
      kind == "llama3", "[model.from] rope_scaling of type '", kind, "': only llama3 is supported");
  return RopeScaling{
      .factor = scaling->real("factor"),
      .low_frequency_factor = scaling->real("low_freq_factor"),
      .high_frequency_factor = scaling->real("high_freq_factor"),
      .original_positions = scaling->count("original_max_position_embeddings")};
}

}  // namespace

std::string huggingface_name(const std::string& name) {
  static const std::map<std::string, std::string> in_layer{
      {"attention_norm.weight", "input_layernorm.weight"},
      {"attention.query.weight", "self_attn.q_proj.weight"},
      {"attention.key.weight", "self_attn.k_proj.weight"},
      {"attention.value.weight", "self_attn.v_proj.weight"},
      {"attention.output.weight", "self_attn.o_proj.weight"},
      {"feed_forward_norm.weight", "post_attention_layernorm.weight"},
      {"feed_forward.gate.weight", "mlp.gate_proj.weight"},
      {"feed_forward.up.weight", "mlp.up_proj.weight"},
      {"feed_forward.down.weight", "mlp.down_proj.weight"}};
  if (name == "embedding.weight") return "model.embed_tokens.weight";
  if (name == "norm.weight" || name == "head.norm.weight") return "model.norm.weight";
  if (name == "head.linear.weight") return "lm_head.weight";
  const auto dot = name.find('.');
  return "model.layers." + name.substr(5, dot - 5) + "." + in_layer.at(name.substr(dot + 1));
}

namespace {

/// The weights of a folder, whichever files they are in. A file is opened when something of it is
/// asked for.
class Weights {
 public:
  explicit Weights(const fs::path& folder) : folder_(folder) {
    const auto index = folder / "model.safetensors.index.json";
    if (!fs::exists(index)) {
      const auto name = "model.safetensors";
      for (const auto& [tensor, about] : open(name).tensors()) files_[tensor] = name;
      return;
    }
    const auto json = read_json(index);
    const auto map = json.find("weight_map");
    TORCH_CHECK_VALUE(
        map != json.end() && map->is_object(), "[model.from] ", index.string(),
        " has no weight_map");
    TORCH_CHECK_VALUE(!map->empty(), "[model.from] ", index.string(), ": its weight_map is empty");
    for (const auto& [name, file] : map->items()) {
      TORCH_CHECK_VALUE(
          file.is_string() &&
              fs::path(file.get<std::string>()).filename() == file.get<std::string>(),
          "[model.from] ", index.string(), ": the file of '", name, "' is ",
          file.dump().substr(0, 60), ": it must be the name of a file in the same folder");
      files_[name] = file.get<std::string>();
    }
  }

  /// The file that has a tensor, whose shape there is that of the model.
  const SafetensorsFile& checked(const std::string& name, at::IntArrayRef shape) {
    const auto found = files_.find(name);
    TORCH_CHECK_VALUE(
        found != files_.end(), "[model.from] ", folder_.string(), " has no tensor '", name,
        "', which the model of config.json needs");
    const auto& file = open(found->second);
    const auto about = file.tensors().find(name);
    TORCH_CHECK_VALUE(
        about != file.tensors().end(), "[model.from] ", file.path(), " has no tensor '", name,
        "', although model.safetensors.index.json lists it there");
    const at::IntArrayRef there(about->second.shape);
    TORCH_CHECK_VALUE(
        there == shape, "[model.from] ", file.path(), ": tensor '", name, "' has the shape ", there,
        ", but by config.json it is ", shape);
    return file;
  }

  /// The folder has every tensor of the model and no other, by what the index says.
  void check_names(const std::map<std::string, std::vector<int64_t>>& shapes) const {
    for (const auto& [name, shape] : shapes) {
      TORCH_CHECK_VALUE(
          files_.contains(name), "[model.from] ", folder_.string(), " has no tensor '", name,
          "', which the model of config.json needs");
    }
    for (const auto& [name, file] : files_) {
      // Tied, the head may be there once more; the angles are a function of config.json.
      const bool spare = name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq");
      TORCH_CHECK_VALUE(
          spare || shapes.contains(name), "[model.from] ", (folder_ / file).string(),
          " has a tensor '", name, "', which the model of config.json has no place for");
    }
  }

 private:
  const SafetensorsFile& open(const std::string& name) {
    const auto found = open_.find(name);
    if (found != open_.end()) return found->second;
    return open_.emplace(name, (folder_ / name).string()).first->second;
  }
  fs::path folder_;
  std::map<std::string, std::string> files_;  // by tensor
  std::map<std::string, SafetensorsFile> open_;
};

/// Of all tensors that a model is saved as.
std::map<std::string, std::vector<int64_t>> tensor_shapes(const LanguageModel& model) {
  std::map<std::string, std::vector<int64_t>> result;
  for (const auto& item : model.named_parameters()) {
    for (const auto& slice : model.slices_of(item.key(), item.value().sizes())) {
      result[slice.tensor] = slice.shape;
    }
  }
  return result;
}

}  // namespace

namespace {

LlamaOptions options_of(const Json& json, const std::string& path) {
  const Config config(json, path);
  config.require("architectures", Json::array({"LlamaForCausalLM"}));
  config.require("model_type", "llama");
  config.require("hidden_act", "silu");
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  LlamaOptions options;
  options.vocab = config.count("vocab_size", {}, 31);
  options.dim = config.count("hidden_size");
  options.layers = config.count("num_hidden_layers", {}, 16);
  options.heads = config.count("num_attention_heads", {}, 16);
  options.kv_heads = config.count("num_key_value_heads", options.heads);
  options.head_dim = config.count("head_dim", std::max<int64_t>(1, options.dim / options.heads));
  options.ffn = config.count("intermediate_size");
  const auto rope = config.inner("rope_parameters");
  options.rope_theta = config.real("rope_theta", rope ? rope->real("rope_theta", 10000) : 10000);
  options.rope_scaling = scaling_of(config);
  options.norm_eps = config.real("rms_norm_eps", 1e-6);
  options.tie_embeddings = config.flag("tie_word_embeddings", false);
  options.init_std = config.real("initializer_range", 0.02);
  TORCH_CHECK_VALUE(
      options.heads % options.kv_heads == 0 && options.head_dim % 2 == 0, "[model.from] ", path,
      ": num_key_value_heads = ", options.kv_heads,
      " must divide num_attention_heads = ", options.heads, ", and head_dim = ", options.head_dim,
      " must be even");
  return options;
}

}  // namespace

LlamaOptions read_llama_options(const std::string& folder) {
  const auto path = fs::path(folder) / "config.json";
  const auto json = read_json(path);
  auto options = options_of(json, path.string());
  options.config = json.dump();
  return options;
}

void check_llama(const LanguageModel& model, const std::string& folder) {
  Weights weights{fs::path(folder)};
  const auto shapes = tensor_shapes(model);
  weights.check_names(shapes);
  for (const auto& [name, shape] : shapes) weights.checked(name, shape);
}

void load_llama(LanguageModel& model, const std::string& folder) {
  std::optional<Weights> weights;  // opened where an error reaches all ranks
  const auto shapes = tensor_shapes(model);
  const auto slices = [&](const std::string& name, at::IntArrayRef shape) {
    return model.slices_of(name, shape);
  };
  const auto check = [&](const std::string& name) {
    if (!weights) weights.emplace(fs::path(folder)).check_names(shapes);
    weights->checked(name, shapes.at(name));
  };
  const auto read = [&](const std::string& name, int64_t begin, int64_t count) {
    return weights->checked(name, shapes.at(name)).read(name, begin, count);
  };
  load_elements(model, slices, read, check);
}

namespace {

/// What the options say, with all else that a LlamaConfig has: transformers' defaults differ
/// between its versions, and some are those of one model, such as the tokens that begin and end a
/// text.
Json config_of(const LlamaOptions& options) {
  Json config{
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"vocab_size", options.vocab},
      {"hidden_size", options.dim},
      {"num_hidden_layers", options.layers},
      {"num_attention_heads", options.heads},
      {"num_key_value_heads", options.kv_heads},
      {"head_dim", options.head_dim},
      {"intermediate_size", options.ffn},
      {"rope_theta", options.rope_theta},
      {"rms_norm_eps", options.norm_eps},
      {"tie_word_embeddings", options.tie_embeddings},
      {"initializer_range", options.init_std},
      {"attention_dropout", 0.0},
      {"pretraining_tp", 1},
      {"use_cache", true},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"pad_token_id", nullptr},
      {"rope_scaling", nullptr}};
  if (const auto& scaling = options.rope_scaling) {
    config["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling->factor},
        {"low_freq_factor", scaling->low_frequency_factor},
        {"high_freq_factor", scaling->high_frequency_factor},
        {"original_max_position_embeddings", scaling->original_positions}};
  }
  return config;
}

}  // namespace

std::string huggingface_config(const LlamaOptions& options) {
  auto config = config_of(options);
  if (!options.config.empty()) {
    auto source = Json::parse(options.config);
    // What was changed since it was read; all else is as it was, in whichever form.
    const auto before = config_of(options_of(source, "config.json"));
    for (const auto& [key, value] : config.items()) {
      if (before.at(key) == value) continue;
      if (key.starts_with("rope_")) source.erase("rope_parameters");
      source[key] = value;
    }
    config = std::move(source);
  }
  return config.dump(2) + "\n";
}

}  // namespace sherd
