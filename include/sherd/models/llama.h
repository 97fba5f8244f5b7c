// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sherd/comm/mesh.h"
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
  bool qkv_bias = false;                  ///< queries, keys and values have biases (Qwen2)
  bool qk_norm = false;                   ///< each head of queries and keys is normed (Qwen3)
  bool qk_norm_across = false;            ///< … or, with qk_norm, all heads as one (OLMoE)
  int64_t sliding_window = 0;             ///< longer sequences are refused; 0: any length
  double init_std = 0.02;                 ///< standard deviation of initial weights
  Recompute recompute = Recompute::none;  ///< what is recomputed in the backward
  int64_t recompute_layers = 0;           ///< how many layers, from the first on; 0: all
  /// The config.json that these options were read from, if any. Its other entries (end-of-text
  /// tokens, longest sequence, …) are kept in the model's own config.json.
  std::string config{};
  /// Tensor and context parallelism: a mesh of all ranks of the world with axes out of `dp_outer`,
  /// `dp`, `cp` and `tp`, in this order and with `dp`. Ranks along `cp` and `tp` share sequences
  /// (see LanguageModel::part_of). Those along `tp` each have an equal part of the heads and of the
  /// width of feed-forwards; their number must divide heads, kv_heads and ffn, and qk_norm_across
  /// is refused. With more than one rank along `cp`, 2 · cp · tp must divide the sequences' length,
  /// else tp. Models with Mamba-2 need as many heads there as cp · tp divides, and vision-language
  /// models one rank along both. On a GPU more than one rank along `cp` needs bf16 or fp16.
  /// Default: every rank has whole sequences and computes with whole weights.
  std::optional<Mesh> mesh{};

  /// Returns whether a layer is recomputed in this way.
  bool recomputes(Recompute kind, int64_t layer) const {
    return recompute == kind && (recompute_layers == 0 || layer < recompute_layers);
  }
};

/// Makes a Llama: grouped-query attention, rotary embeddings, SwiGLU, RMSNorm. Build it under
/// MetaDevice to allocate no memory before it is sharded. Its units are the layers and, unless
/// embeddings are tied, the embedding, and the last norm with the head. Its checkpoints are Hugging
/// Face folders: Qwen2 with qkv_bias, Qwen3 with qk_norm, else Llama. With qk_norm_across they have
/// no config.json and Sherd's names. Throws if qkv_bias and qk_norm are set, and for qk_norm_across
/// without qk_norm.
SHERD_API std::shared_ptr<LanguageModel> make_llama(const LlamaOptions& options);

}  // namespace sherd
