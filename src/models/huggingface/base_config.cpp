// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/base_config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

namespace sherd {
namespace {

using Json = nlohmann::ordered_json;

std::optional<RopeScaling> scaling_of(const ConfigFile& config) {
  // transformers 5 has all of it, the base too, in rope_parameters.
  auto scaling = config.inner("rope_parameters");
  if (!scaling) scaling = config.inner("rope_scaling");
  if (!scaling) return std::nullopt;
  auto kind = scaling->word("rope_type");
  const auto older = scaling->word("type");
  if (kind.empty()) kind = older;
  TORCH_CHECK_VALUE(
      older.empty() || kind == older, "[model.from] ", config.path(),
      ": rope_scaling has rope_type '", kind, "' and type '", older, "': remove the wrong one");
  TORCH_CHECK_VALUE(
      !kind.empty() || !scaling->has("factor"), "[model.from] ", config.path(),
      ": rope_scaling has a factor and no rope_type: add rope_type, or remove rope_scaling");
  if (kind.empty() || kind == "default") return std::nullopt;
  TORCH_CHECK_VALUE(
      kind == "llama3", "[model.from] ", config.path(), ": rope_scaling of type '", kind,
      "': only llama3 is supported");
  return RopeScaling{
      .factor = scaling->real("factor"),
      .low_frequency_factor = scaling->real("low_freq_factor"),
      .high_frequency_factor = scaling->real("high_freq_factor"),
      .original_positions = scaling->count("original_max_position_embeddings")};
}

}  // namespace

LlamaOptions read_base_config(const ConfigFile& config, const ConfigDefaults& defaults) {
  config.require("hidden_act", "silu");
  config.require("attention_dropout", 0.0);
  LlamaOptions options;
  options.vocab = config.count("vocab_size", {}, 31);
  options.dim = config.count("hidden_size");
  options.layers = config.count("num_hidden_layers", {}, 16);
  options.heads = config.count("num_attention_heads", {}, 16);
  options.kv_heads = config.count("num_key_value_heads", defaults.kv_heads);
  const int64_t usual = std::max<int64_t>(1, options.dim / options.heads);
  options.head_dim = config.count("head_dim", defaults.head_dim.value_or(usual));
  options.ffn = config.count("intermediate_size");
  const auto rope = config.inner("rope_parameters");
  if (!defaults.partial_rotary) {
    config.require("partial_rotary_factor", 1.0);
    if (rope) rope->require("partial_rotary_factor", 1.0);
  }
  const double theta = defaults.rope_theta;
  options.rope_theta = config.real("rope_theta", rope ? rope->real("rope_theta", theta) : theta);
  options.rope_scaling = scaling_of(config);
  options.norm_eps = config.real("rms_norm_eps", defaults.norm_eps);
  options.tie_embeddings = config.flag("tie_word_embeddings", false);
  options.init_std = config.real("initializer_range", 0.02);
  TORCH_CHECK_VALUE(
      options.heads % options.kv_heads == 0 && options.head_dim % 2 == 0, "[model.from] ",
      config.path(), ": num_key_value_heads = ", options.kv_heads,
      " must divide num_attention_heads = ", options.heads, ", and head_dim = ", options.head_dim,
      " must be even");
  return options;
}

int64_t usual_kv_heads(const ConfigFile& config, int64_t usual) {
  const int64_t heads = config.count("num_attention_heads", {}, 16);
  return config.has("num_key_value_heads") ? heads : usual;
}

Json base_config(const LlamaOptions& options) {
  Json config{
      {"hidden_act", "silu"},
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

std::string base_name(const std::string& name) {
  static const std::map<std::string, std::string> outside{
      {"embedding.weight", "model.embed_tokens.weight"},
      {"norm.weight", "model.norm.weight"},
      {"head.norm.weight", "model.norm.weight"},
      {"head.linear.weight", "lm_head.weight"}};
  static const std::map<std::string, std::string> in_layer{
      {"attention_norm.weight", "input_layernorm.weight"},
      {"attention.query.weight", "self_attn.q_proj.weight"},
      {"attention.key.weight", "self_attn.k_proj.weight"},
      {"attention.value.weight", "self_attn.v_proj.weight"},
      {"attention.query.bias", "self_attn.q_proj.bias"},
      {"attention.key.bias", "self_attn.k_proj.bias"},
      {"attention.value.bias", "self_attn.v_proj.bias"},
      {"attention.query_norm.weight", "self_attn.q_norm.weight"},
      {"attention.key_norm.weight", "self_attn.k_norm.weight"},
      {"attention.output.weight", "self_attn.o_proj.weight"},
      {"feed_forward_norm.weight", "post_attention_layernorm.weight"},
      {"experts_norm.weight", "post_attention_layernorm.weight"},
      {"feed_forward.gate.weight", "mlp.gate_proj.weight"},
      {"feed_forward.up.weight", "mlp.up_proj.weight"},
      {"feed_forward.down.weight", "mlp.down_proj.weight"}};
  const auto found = outside.find(name);
  if (found != outside.end()) return found->second;
  const auto dot = name.find('.');
  return "model.layers." + name.substr(5, dot - 5) + "." + in_layer.at(name.substr(dot + 1));
}

}  // namespace sherd
