// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "models/huggingface/config_file.h"
#include "sherd/models/llama.h"

// The dense families. Each function reads one's config.json.
namespace sherd {

LlamaOptions read_llama(const ConfigFile& config);
LlamaOptions read_mistral(const ConfigFile& config);
LlamaOptions read_qwen2(const ConfigFile& config);
LlamaOptions read_qwen3(const ConfigFile& config);

/// Returns the window of Qwen's models if one of their layers has any, else 0.
int64_t qwen_sliding_window(const ConfigFile& config, int64_t layers);

/// Returns the entries of config.json that follow from the options: those of Qwen2 with qkv_bias,
/// of Qwen3 with qk_norm, else of Llama.
nlohmann::ordered_json llama_config(const LlamaOptions& options);

}  // namespace sherd
