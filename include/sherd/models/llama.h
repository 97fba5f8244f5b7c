// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sherd/export.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// The scaling of Llama 3.1's rotary embeddings for sequences longer than the original ones
/// (rope_type "llama3").
struct RopeScaling {
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  int64_t original_positions = 8192;
};

/// Options of make_llama.
struct LlamaOptions {
  int64_t vocab = 256;        ///< size of the vocabulary
  int64_t dim = 256;          ///< width of the model
  int64_t layers = 8;         ///< number of layers
  int64_t heads = 8;          ///< number of query heads
  int64_t kv_heads = 8;       ///< number of key and value heads; divides `heads`
  int64_t head_dim = 32;      ///< width of a head; even
  int64_t ffn = 704;          ///< width inside the feed-forward
  double rope_theta = 10000;  ///< base of the rotary embeddings
  std::optional<RopeScaling> rope_scaling{};
  double norm_eps = 1e-5;                 ///< epsilon of the norms
  bool tie_embeddings = false;            ///< the head uses the embedding's weight
  double init_std = 0.02;                 ///< standard deviation of initial weights
  Recompute recompute = Recompute::none;  ///< what is recomputed in the backward
  int64_t recompute_layers = 0;           ///< how many layers, from the first on; 0: all
  /// The config.json that these options were read from, if any. Its other entries (end-of-text
  /// tokens, longest sequence, …) are kept in the model's own config.json.
  std::string config{};

  /// Returns whether a layer is recomputed in this way.
  bool recomputes(Recompute kind, int64_t layer) const {
    return recompute == kind && (recompute_layers == 0 || layer < recompute_layers);
  }
};

/// Makes a Llama: grouped-query attention, rotary embeddings, SwiGLU, RMSNorm. Build it under
/// MetaDevice to allocate no memory before it is sharded. Its units are the layers and, unless
/// embeddings are tied, the embedding, and the last norm with the head. Its checkpoints are Hugging
/// Face LlamaForCausalLM folders.
SHERD_API std::shared_ptr<LanguageModel> make_llama(const LlamaOptions& options);

/// Reads the options of a Llama from the config.json of a Hugging Face folder (LlamaForCausalLM).
/// Throws, naming the entry, if it is missing, wrong or not supported.
SHERD_API LlamaOptions read_llama_options(const std::string& folder);
/// Throws, naming the tensor, unless the folder has all weights of the model in the right shapes
/// and no others (a tied lm_head.weight and rotary_emb.inv_freq are ignored). Weights may be in fp8
/// with scales by blocks, as SaveOptions::export_fp8 and DeepSeek's folders have them; other
/// quantizations throw. Opens all files but reads no weights; the model may be on the meta device.
SHERD_API void check_llama(const LanguageModel& model, const std::string& folder);
/// Loads the weights of such a folder into a sharded Llama: each rank reads its own elements.
/// Checks the names of all tensors, and the shapes of those that a rank reads, before any rank
/// changes the model. Collective; blocks. An error throws on all ranks; if it came from reading
/// elements, the model is then partly loaded.
SHERD_API void load_llama(LanguageModel& model, const std::string& folder);

}  // namespace sherd
