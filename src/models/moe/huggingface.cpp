// SPDX-License-Identifier: Apache-2.0
#include "models/moe/huggingface.h"

#include <c10/util/Exception.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "models/huggingface/base_config.h"

namespace sherd {
namespace {

using Json = nlohmann::ordered_json;

/// The entries that families call by different names.
struct ExpertKeys {
  const char* count;
  const char* ffn;
};
constexpr ExpertKeys kMixtralKeys{"num_local_experts", "intermediate_size"};
constexpr ExpertKeys kQwen3Keys{"num_experts", "moe_intermediate_size"};
constexpr ExpertKeys kOlmoeKeys{"num_experts", "intermediate_size"};

/// transformers computes one loss from means over the tokens of all layers, which is top_k if
/// experts are used equally; Sherd adds one for each layer, 1 for each token in that case.
double layers_over_top_k(const LlamaOptions& base, const ExpertOptions& experts) {
  return static_cast<double>(base.layers) / static_cast<double>(experts.top_k);
}

struct ExpertDefaults {
  int64_t count = 8;
  int64_t top_k = 2;
  double balance = 0.001;
  std::optional<int64_t> ffn{};  // none: the entry is needed
};

ExpertOptions read_experts(
    const ConfigFile& config,
    const LlamaOptions& base,
    const ExpertKeys& keys,
    const ExpertDefaults& defaults) {
  ExpertOptions experts;
  experts.count = config.count(keys.count, defaults.count, 16);
  experts.top_k = config.count("num_experts_per_tok", defaults.top_k, 16);
  experts.ffn = config.count(keys.ffn, defaults.ffn);
  const bool adds_loss = config.flag("output_router_logits", false);
  const double weight = config.weight("router_aux_loss_coef", defaults.balance);
  experts.balance = adds_loss ? weight / layers_over_top_k(base, experts) : 0;
  if (experts.top_k > experts.count) {
    config.refuse(
        "num_experts_per_tok", c10::str("it must be at most ", keys.count, " = ", experts.count));
  }
  const char* multiple_of_8 = "with experts it must be a multiple of 8";
  if (base.dim % 8 != 0) config.refuse("hidden_size", multiple_of_8);
  if (experts.ffn % 8 != 0) config.refuse(keys.ffn, multiple_of_8);
  return experts;
}

Json expert_entries(const MoeOptions& options, const ExpertKeys& keys) {
  const auto& experts = options.experts;
  return {
      {keys.count, experts.count},
      {"num_experts_per_tok", experts.top_k},
      {keys.ffn, experts.ffn},
      {"output_router_logits", false},  // generate() of transformers fails with it
      {"router_aux_loss_coef", experts.balance * layers_over_top_k(options.base, experts)}};
}

}  // namespace

MoeFamily moe_family(const MoeOptions& options) {
  if (options.experts.shared_ffn > 0 || options.base.qkv_bias) return MoeFamily::none;
  const auto& base = options.base;
  if (base.qk_norm && base.qk_norm_across) {
    return base.heads * base.head_dim == base.dim ? MoeFamily::olmoe : MoeFamily::none;
  }
  if (base.qk_norm) return MoeFamily::qwen3_moe;
  return options.experts.norm_top_k ? MoeFamily::mixtral : MoeFamily::none;
}

MoeOptions read_mixtral(const ConfigFile& config) {
  config.require("router_jitter_noise", 0.0);
  MoeOptions options;
  options.base = read_base_config(
      config, {.norm_eps = 1e-5, .rope_theta = 1e6, .kv_heads = usual_kv_heads(config, 8)});
  options.base.sliding_window = config.count("sliding_window", 0);
  options.experts = read_experts(config, options.base, kMixtralKeys, {.count = 8, .top_k = 2});
  return options;
}

MoeOptions read_qwen3_moe(const ConfigFile& config) {
  config.require("attention_bias", false);
  // Layers without experts.
  config.require("decoder_sparse_step", 1);
  config.require("mlp_only_layers", Json::array());
  MoeOptions options;
  auto& base = options.base;
  base = read_base_config(config, {.kv_heads = usual_kv_heads(config, 4)});
  base.qk_norm = true;
  if (config.flag("use_sliding_window", false)) {
    base.sliding_window = config.count("sliding_window", config.has("sliding_window") ? 0 : 4096);
  }
  options.experts = read_experts(config, base, kQwen3Keys, {.count = 128, .top_k = 8, .ffn = 768});
  options.experts.norm_top_k = config.flag("norm_topk_prob", false);
  return options;
}

MoeOptions read_olmoe(const ConfigFile& config) {
  config.require("attention_bias", false);
  config.require("clip_qkv", nullptr);
  const int64_t heads = config.count("num_attention_heads", {}, 16);
  MoeOptions options;
  auto& base = options.base;
  base = read_base_config(config, {.norm_eps = 1e-5, .kv_heads = heads});
  if (base.heads * base.head_dim != base.dim) {
    config.refuse("head_dim", "a model of this family has hidden_size / num_attention_heads");
  }
  base.qk_norm = base.qk_norm_across = true;
  options.experts =
      read_experts(config, base, kOlmoeKeys, {.count = 64, .top_k = 8, .balance = 0.01});
  options.experts.norm_top_k = config.flag("norm_topk_prob", false);
  return options;
}

Json moe_config(const MoeOptions& options) {
  auto config = base_config(options.base);
  const auto family = moe_family(options);
  if (family == MoeFamily::olmoe) {
    config.update(
        {{"architectures", {"OlmoeForCausalLM"}},
         {"model_type", "olmoe"},
         {"attention_bias", false},
         {"clip_qkv", nullptr},
         {"norm_topk_prob", options.experts.norm_top_k}});
    config.update(expert_entries(options, kOlmoeKeys));
    return config;
  }
  if (family == MoeFamily::mixtral) {
    config.update(
        {{"architectures", {"MixtralForCausalLM"}},
         {"model_type", "mixtral"},
         {"sliding_window", nullptr},
         {"router_jitter_noise", 0.0}});
    config.update(expert_entries(options, kMixtralKeys));
    return config;
  }
  config.update(
      {{"architectures", {"Qwen3MoeForCausalLM"}},
       {"model_type", "qwen3_moe"},
       {"attention_bias", false},
       {"use_sliding_window", false},
       {"sliding_window", nullptr},
       {"decoder_sparse_step", 1},
       {"mlp_only_layers", Json::array()},
       {"norm_topk_prob", options.experts.norm_top_k}});
  config.update(expert_entries(options, kQwen3Keys));
  return config;
}

std::vector<TensorSlice> moe_slices(MoeFamily family, const TensorSlice& slice) {
  static const std::string inside = ".experts.";
  static const std::map<std::string, std::pair<const char*, const char*>> names{
      {"gate", {"w1", "gate_proj"}}, {"up", {"w3", "up_proj"}}, {"down", {"w2", "down_proj"}}};
  const bool mixtral = family == MoeFamily::mixtral;
  const auto at = slice.tensor.find(inside);
  if (at == std::string::npos) return {{base_name(slice.tensor), slice.shape, slice.ranges}};
  const auto layer =
      "model.layers." + slice.tensor.substr(5, at - 5) + (mixtral ? ".block_sparse_moe." : ".mlp.");
  const auto part = slice.tensor.substr(at + inside.size());
  if (part == "router") return {{layer + "gate.weight", slice.shape, slice.ranges}};
  // [E, .., ..], or one expert of it.
  const auto& [in_mixtral, in_qwen3] = names.at(part);
  const auto [first, end] =
      slice.ranges.empty() ? std::pair<int64_t, int64_t>(0, slice.shape[0]) : slice.ranges[0];
  std::vector<TensorSlice> slices;
  for (int64_t expert = first; expert < end; ++expert) {
    slices.push_back(
        {c10::str(layer, "experts.", expert, ".", mixtral ? in_mixtral : in_qwen3, ".weight"),
         {slice.shape[1], slice.shape[2]},
         {}});
  }
  return slices;
}

}  // namespace sherd
