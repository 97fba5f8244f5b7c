// SPDX-License-Identifier: Apache-2.0
#include "models/hybrid/huggingface.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/huggingface/base_config.h"

namespace sherd {
namespace {

using Json = nlohmann::ordered_json;

int64_t mamba_heads(const HybridOptions& options) {
  return options.mamba.expand * options.base.dim / options.mamba.head_dim;
}

/// The width of a head: mamba_d_head may be "auto", and then follows from the number of heads.
int64_t mamba_head_dim(const ConfigFile& config, int64_t inner, int64_t heads) {
  const bool follows = !config.has("mamba_d_head") || config.word("mamba_d_head") == "auto";
  const int64_t width = follows ? inner / heads : config.count("mamba_d_head");
  if (heads > inner || width * heads != inner) {
    config.refuse(
        follows ? "mamba_n_heads" : "mamba_d_head",
        c10::str("heads and their width must make mamba_expand · hidden_size = ", inner));
  }
  return width;
}

void read_mamba(const ConfigFile& config, HybridOptions& options) {
  config.require("mamba_conv_bias", true);
  config.require("mamba_proj_bias", false);
  auto& mamba = options.mamba;
  mamba.state = config.count("mamba_d_state", 256, 16);
  mamba.expand = config.count("mamba_expand", 2, 8);
  mamba.groups = config.count("mamba_n_groups", 1, 16);
  mamba.width = config.count("mamba_d_conv", 4, 3);
  mamba.chunk = config.count("mamba_chunk_size", 256, 20);
  const int64_t heads = config.count("mamba_n_heads", 128, 20);
  mamba.head_dim = mamba_head_dim(config, mamba.expand * options.base.dim, heads);
  if (heads % mamba.groups != 0) {
    config.refuse("mamba_n_groups", c10::str("it must divide mamba_n_heads = ", heads));
  }
}

void read_rotary_part(const ConfigFile& config, HybridOptions& options) {
  const auto rope = config.inner("rope_parameters");
  const double usual = rope ? rope->real("partial_rotary_factor", 0.5) : 0.5;
  options.rope_fraction = config.real("partial_rotary_factor", usual);
  if (options.rope_fraction > 1 || options.rotated_dims() < 2 || options.rotated_dims() % 2 != 0) {
    config.refuse(
        "partial_rotary_factor", c10::str(
                                     "it must be at most 1, and give an even number of the ",
                                     options.base.head_dim, " dims of a head"));
  }
}

}  // namespace

bool is_bamba(const HybridOptions& options) {
  const auto& base = options.base;
  bool result = base.layers % 2 == 0 && !base.qkv_bias && !base.qk_norm;
  for (int64_t i = 0; i < base.layers; ++i) {
    const char letter = options.letter(i);
    result = result && (i % 2 == 1 ? letter == '-' : letter == 'M' || letter == '*');
  }
  return result;
}

HybridOptions read_bamba(const ConfigFile& config) {
  config.require("attention_bias", false);
  config.require("mlp_bias", false);
  config.require("z_loss_coefficient", 0.0);
  HybridOptions options;
  auto& base = options.base;
  base = read_base_config(
      config, {.norm_eps = 1e-5, .kv_heads = usual_kv_heads(config, 8), .partial_rotary = true});
  read_rotary_part(config, options);
  read_mamba(config, options);
  const auto attention = config.indices("attn_layer_indices", base.layers);
  options.pattern.clear();
  for (int64_t i = 0; i < base.layers; ++i) {
    const bool attends = std::find(attention.begin(), attention.end(), i) != attention.end();
    options.pattern += attends ? "*-" : "M-";
  }
  base.layers *= 2;
  return options;
}

Json bamba_config(const HybridOptions& options) {
  std::vector<int64_t> attention;
  for (int64_t i = 0; i < options.base.layers; i += 2) {
    if (options.letter(i) == '*') attention.push_back(i / 2);
  }
  const auto& mamba = options.mamba;
  auto config = base_config(options.base);
  config.update(
      {{"architectures", {"BambaForCausalLM"}},
       {"model_type", "bamba"},
       {"num_hidden_layers", options.base.layers / 2},
       {"attn_layer_indices", attention},
       {"attention_bias", false},
       {"mlp_bias", false},
       {"partial_rotary_factor", options.rope_fraction},
       {"mamba_n_heads", mamba_heads(options)},
       {"mamba_d_head", mamba.head_dim},
       {"mamba_n_groups", mamba.groups},
       {"mamba_d_state", mamba.state},
       {"mamba_d_conv", mamba.width},
       {"mamba_expand", mamba.expand},
       {"mamba_chunk_size", mamba.chunk},
       {"mamba_conv_bias", true},
       {"mamba_proj_bias", false},
       {"num_logits_to_keep", 1},
       {"z_loss_coefficient", 0.0}});
  return config;
}

TensorSlice bamba_slice(const HybridOptions& options, TensorSlice slice) {
  using Names = std::map<std::string, const char*>;
  static const Names outside{
      {"embedding.weight", "model.embed_tokens.weight"},
      {"norm.weight", "model.final_layernorm.weight"},
      {"head.norm.weight", "model.final_layernorm.weight"},
      {"head.linear.weight", "lm_head.weight"}};
  static const std::map<char, Names> inside{
      {'M',
       {{"norm.weight", "input_layernorm.weight"},
        {"mixer.input.weight", "mamba.in_proj.weight"},
        {"mixer.filter", "mamba.conv1d.weight"},
        {"mixer.filter_bias", "mamba.conv1d.bias"},
        {"mixer.decay_log", "mamba.A_log"},
        {"mixer.step_bias", "mamba.dt_bias"},
        {"mixer.through", "mamba.D"},
        {"mixer.norm.weight", "mamba.norm.weight"},
        {"mixer.output.weight", "mamba.out_proj.weight"}}},
      {'*',
       {{"norm.weight", "input_layernorm.weight"},
        {"mixer.query.weight", "self_attn.q_proj.weight"},
        {"mixer.key.weight", "self_attn.k_proj.weight"},
        {"mixer.value.weight", "self_attn.v_proj.weight"},
        {"mixer.output.weight", "self_attn.o_proj.weight"}}},
      {'-',
       {{"norm.weight", "pre_ff_layernorm.weight"},
        {"mixer.gate.weight", "feed_forward.gate_proj.weight"},
        {"mixer.up.weight", "feed_forward.up_proj.weight"},
        {"mixer.down.weight", "feed_forward.down_proj.weight"}}}};
  if (const auto found = outside.find(slice.tensor); found != outside.end()) {
    slice.tensor = found->second;
    return slice;
  }
  const auto dot = slice.tensor.find('.');
  const int64_t layer = std::stoll(slice.tensor.substr(5, dot - 5));
  const auto name = slice.tensor.substr(dot + 1);
  if (name == "mixer.filter") {  // of torch's Conv1d: [channels, 1, width]
    slice.shape = {slice.shape[0] / options.mamba.width, 1, options.mamba.width};
  }
  slice.tensor =
      c10::str("model.layers.", layer / 2, ".", inside.at(options.letter(layer)).at(name));
  return slice;
}

}  // namespace sherd
