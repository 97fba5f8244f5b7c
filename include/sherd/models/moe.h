// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "sherd/comm/mesh.h"
#include "sherd/export.h"
#include "sherd/models/llama.h"

namespace sherd {

/// Sizes of a mixture-of-experts layer: a router chooses `top_k` feed-forwards for each token. No
/// token is dropped, however many choose the same expert.
struct ExpertOptions {
  int64_t count = 8;  ///< number of experts
  int64_t top_k = 2;  ///< experts for each token
  bool norm_top_k =
      true;  ///< the weights of a token's experts sum to 1; else they are its softmax values
  int64_t ffn = 704;       ///< width inside an expert
  int64_t shared_ffn = 0;  ///< width of an additional expert for all tokens; 0: none
  /// Weight of the load-balancing loss. That loss is smallest, 1 per layer and token, if all
  /// experts of a layer get equally many tokens of each sequence. It is computed within each
  /// sequence, so it does not depend on the number of ranks.
  double balance = 0.01;
  /// Expert parallelism: a mesh of all ranks of the world with an axis `ep`, which must divide
  /// `count`. Each of its ranks has an equal part of every layer's experts, and tokens are sent to
  /// the ranks of their experts. The other axes are the experts' data-parallel ones: `edp` and, if
  /// the mesh has it, `dp_outer` (see LanguageModel::rules). Default: every rank has all experts.
  std::optional<Mesh> mesh{};
};

/// Options of make_moe.
struct MoeOptions {
  LlamaOptions base{};      ///< sizes of all but the experts; `ffn` is not used
  ExpertOptions experts{};  ///< sizes of the experts
};

/// Makes a Llama with mixture-of-experts layers in place of feed-forwards; its units are the same.
/// Its checkpoints are Hugging Face folders: Qwen3-MoE with qk_norm, OLMoE with qk_norm_across as
/// well, Mixtral without both and with norm_top_k. Other combinations, and models
/// with qkv_bias or a shared expert, have no config.json and keep Sherd's names.
SHERD_API std::shared_ptr<LanguageModel> make_moe(const MoeOptions& options);

}  // namespace sherd
