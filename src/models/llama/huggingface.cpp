// SPDX-License-Identifier: Apache-2.0
#include "models/llama/huggingface.h"

#include "models/huggingface/base_config.h"

namespace sherd {

using Json = nlohmann::ordered_json;

LlamaOptions read_llama(const ConfigFile& config) {
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  const int64_t heads = config.count("num_attention_heads", {}, 16);
  return read_base_config(config, {.kv_heads = heads});
}

LlamaOptions read_mistral(const ConfigFile& config) {
  auto options = read_base_config(config, {.kv_heads = usual_kv_heads(config, 8)});
  const int64_t otherwise = config.has("sliding_window") ? 0 : 4096;
  options.sliding_window = config.count("sliding_window", otherwise);
  return options;
}

int64_t qwen_sliding_window(const ConfigFile& config, int64_t layers) {
  const bool uses = config.flag("use_sliding_window", false);
  bool slides = uses && config.count("max_window_layers", 28, 24, /*least=*/0) < layers;
  const auto types = config.words("layer_types");
  if (!types.empty()) slides = false;
  for (const auto& type : types) {
    if (type == "full_attention") continue;
    if (type != "sliding_attention" || !uses) {
      config.refuse(
          "layer_types", "'" + type + "' is not supported: only full_attention, and " +
                             "sliding_attention with use_sliding_window = true");
    }
    slides = true;
  }
  const int64_t otherwise = config.has("sliding_window") ? 0 : 4096;
  return slides ? config.count("sliding_window", otherwise) : 0;
}

LlamaOptions read_qwen2(const ConfigFile& config) {
  auto options = read_base_config(config, {.kv_heads = usual_kv_heads(config, 32)});
  options.qkv_bias = true;
  options.sliding_window = qwen_sliding_window(config, options.layers);
  return options;
}

LlamaOptions read_qwen3(const ConfigFile& config) {
  config.require("attention_bias", false);
  auto options =
      read_base_config(config, {.kv_heads = usual_kv_heads(config, 32), .head_dim = 128});
  options.qk_norm = true;
  options.sliding_window = qwen_sliding_window(config, options.layers);
  return options;
}

Json llama_config(const LlamaOptions& options) {
  auto config = base_config(options);
  if (!options.qkv_bias && !options.qk_norm) {
    config.update(
        {{"architectures", {"LlamaForCausalLM"}},
         {"model_type", "llama"},
         {"attention_bias", false},
         {"mlp_bias", false},
         {"pretraining_tp", 1}});
    return config;
  }
  config.update(
      {{"architectures", {options.qk_norm ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM"}},
       {"model_type", options.qk_norm ? "qwen3" : "qwen2"},
       {"use_sliding_window", false},
       {"sliding_window", nullptr},
       {"max_window_layers", options.layers},
       {"layer_types", nullptr}});
  if (options.qk_norm) config["attention_bias"] = false;
  return config;
}

}  // namespace sherd
