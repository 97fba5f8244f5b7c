// SPDX-License-Identifier: Apache-2.0
// Llama as a folder of Hugging Face's: config.json, and safetensors in one file or several.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/huggingface/config_file.h"
#include "models/huggingface/weights_folder.h"
#include "models/llama/huggingface.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/models/llama.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::optional<RopeScaling> scaling_of(const ConfigFile& config) {
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

/// Of all tensors that a model is saved as.
TensorShapes tensor_shapes(const LanguageModel& model) {
  TensorShapes result;
  for (const auto& item : model.named_parameters()) {
    for (const auto& slice : model.slices_of(item.key(), item.value().sizes())) {
      result[slice.tensor] = slice.shape;
    }
  }
  return result;
}

LlamaOptions options_of(const Json& json, const std::string& path) {
  const ConfigFile config(json, path);
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
  WeightsFolder weights{fs::path(folder)};
  const auto shapes = tensor_shapes(model);
  weights.check_names(shapes);
  for (const auto& [name, shape] : shapes) weights.check(name, shape);
}

void load_llama(LanguageModel& model, const std::string& folder) {
  std::optional<WeightsFolder> weights;  // opened where an error reaches all ranks
  const auto shapes = tensor_shapes(model);
  const auto slices = [&](const std::string& name, at::IntArrayRef shape) {
    return model.slices_of(name, shape);
  };
  const auto check = [&](const std::string& name) {
    if (!weights) weights.emplace(fs::path(folder)).check_names(shapes);
    weights->check(name, shapes.at(name));
  };
  const auto read = [&](const std::string& name, int64_t begin, int64_t count) {
    return weights->read(name, shapes.at(name), begin, count);
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
