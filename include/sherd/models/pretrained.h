// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "sherd/export.h"
#include "sherd/models/hybrid.h"
#include "sherd/models/language_model.h"
#include "sherd/models/llama.h"
#include "sherd/models/moe.h"

// Models in Hugging Face folders: config.json, and weights in safetensors. The families are Llama,
// Mistral, Qwen2, Qwen3, Mixtral, Qwen3-MoE, OLMoE and Bamba.
namespace sherd {

/// The options of a model, which say its kind, too.
using ModelOptions = std::variant<LlamaOptions, MoeOptions, HybridOptions>;

/// Reads the options of a model from the config.json of a Hugging Face folder. Throws, naming the
/// entry, if it is missing, wrong or not supported.
SHERD_API ModelOptions read_model_options(const std::string& folder);
/// Returns the options that all kinds have.
SHERD_API LlamaOptions& base_of(ModelOptions& options);
/// Makes the model of these options, by make_llama, make_moe or make_hybrid.
SHERD_API std::shared_ptr<LanguageModel> make_model(const ModelOptions& options);

/// Throws, naming the tensor, unless the folder has all weights of the model in the right shapes
/// and no others (a tied lm_head.weight and rotary_emb.inv_freq are ignored). Weights may be in fp8
/// with scales by blocks, as SaveOptions::export_fp8 and DeepSeek's folders have them; other
/// quantizations throw. Opens all files but reads no weights; the model may be on the meta device.
SHERD_API void check_weights(const LanguageModel& model, const std::string& folder);
/// Loads the weights of such a folder into a sharded model: each rank reads its own elements.
/// Checks the names of all tensors, and the shapes of those that a rank reads, before any rank
/// changes the model. Collective; blocks. An error throws on all ranks; if it came from reading
/// elements, the model is then partly loaded.
SHERD_API void load_weights(LanguageModel& model, const std::string& folder);

}  // namespace sherd
