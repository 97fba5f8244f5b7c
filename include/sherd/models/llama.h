// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sherd/export.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// How Llama 3.1 stretches its rotary positions beyond the length that it was trained with.
struct RopeScaling {
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  int64_t original_positions = 8192;
};

struct LlamaOptions {
  int64_t vocab = 256;
  int64_t dim = 256;
  int64_t layers = 8;
  int64_t heads = 8;
  int64_t kv_heads = 8;   ///< of keys and values: each serves heads / kv_heads queries
  int64_t head_dim = 32;  ///< even
  int64_t ffn = 704;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling{};
  double norm_eps = 1e-5;
  bool tie_embeddings = false;  ///< the head is the embedding
  double init_std = 0.02;
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = 0;  ///< the first so many; 0: all
  /// The config.json that these options were read from, if any: what else it says (tokens that end
  /// a text, the longest text, …) is kept in the model's own.
  std::string config{};

  /// Whether a layer is computed again in this way.
  bool recomputes(Recompute kind, int64_t layer) const {
    return recompute == kind && (recompute_layers == 0 || layer < recompute_layers);
  }
};

/// Llama: grouped queries, rotary positions, SwiGLU, RMSNorm. Units: each layer and, untied, the
/// embedding, and the last norm with the head. Its checkpoints are Hugging Face's.
SHERD_API std::shared_ptr<LanguageModel> make_llama(const LlamaOptions& options);

/// What the config.json of a Hugging Face folder (LlamaForCausalLM) says.
SHERD_API LlamaOptions read_llama_options(const std::string& folder);
/// Throws, naming the tensor, unless such a folder has the weights of a Llama, each of its shape,
/// and no others. Reads none of them; the model may have no memory yet.
SHERD_API void check_llama(const LanguageModel& model, const std::string& folder);
/// Gives a sharded Llama the weights of such a folder, checked in the same way: each rank opens the
/// files that have some of its elements, and reads these. Collective; blocks. An error is thrown on
/// all ranks.
SHERD_API void load_llama(LanguageModel& model, const std::string& folder);

}  // namespace sherd
