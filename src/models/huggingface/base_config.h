// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/huggingface/config_file.h"
#include "sherd/models/llama.h"

namespace sherd {

/// The values of a family for entries that a config.json doesn't have.
struct ConfigDefaults {
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<int64_t> kv_heads{};  ///< none: the entry is needed
  std::optional<int64_t> head_dim{};  ///< none: hidden_size / num_attention_heads
  bool partial_rotary = false;        ///< partial_rotary_factor may be other than 1
};

/// Reads the entries that all families have: sizes, rotary embeddings, norms. Refuses activations,
/// dropout and parts of heads with rotary embeddings that aren't supported.
LlamaOptions read_base_config(const ConfigFile& config, const ConfigDefaults& defaults);
/// Returns what num_key_value_heads means without a value: as many as heads if it is null, `usual`
/// if it is absent.
int64_t usual_kv_heads(const ConfigFile& config, int64_t usual);
/// Returns these entries. The tokens that begin and end a text are null: no default of transformers
/// decides.
nlohmann::ordered_json base_config(const LlamaOptions& options);

/// Returns the name of a parameter in folders of Llama and its relatives: model.embed_tokens,
/// model.norm, lm_head, model.layers.<n>.self_attn and norms. Throws for others.
std::string base_name(const std::string& name);

}  // namespace sherd
