// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <tuple>

#include "models/blocks/attention_scope.h"
#include "models/blocks/norm.h"
#include "models/blocks/rotary.h"
#include "models/blocks/sequence_ranks.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

struct AttentionOptions {
  int64_t dim = 256;
  int64_t heads = 8;
  int64_t kv_heads = 8;
  int64_t head_dim = 32;
  bool causal = true;
  bool qkv_bias = false;
  std::optional<double> qk_norm{};  ///< epsilon of the norms of queries and keys; none: no norms
  bool qk_norm_across = false;      ///< one norm for all heads
  std::optional<RotaryOptions> rotary{};
  SequenceRanks ranks{};  ///< those along `tp` must divide both numbers of heads
};

AttentionOptions attention_of(const LlamaOptions& options);

/// Grouped-query attention. Each rank along `tp` has an equal part of the heads.
struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const AttentionOptions& options);
  at::Tensor forward(const at::Tensor& x_BSD);
  /// Returns {x, attention(norm(x))}.
  std::tuple<at::Tensor, at::Tensor> normed(
      const at::Tensor& x_BSD, const RmsNorm& norm, const AttentionScope& scope = {});
  /// Returns the operations of one token's forward.
  double flops_per_token(int64_t seq) const;

  Linear qkv{nullptr};  ///< rows of the queries, then the keys, then the values
  Linear output{nullptr};
  RmsNorm query_norm{nullptr}, key_norm{nullptr};  ///< of each head, or of all

 private:
  at::Tensor with_normed_heads(const at::Tensor& packed);
  at::Tensor mixed(const at::Tensor& packed, const AttentionScope& scope);
  at::Tensor within_documents(const at::Tensor& packed, const at::Tensor& documents);
  at::Tensor beyond_cache(const at::Tensor& packed, const AttentionScope& scope);
  RotaryTables tables(int64_t positions, c10::Device device);
  AttentionOptions options_;
  AttentionShape shape_;  // of this rank's heads
  std::optional<Rotary> rotary_;
  std::optional<Rotary>
      cached_rotary_;  // of a cache's positions: graphs keep the other's addresses
};
SHERD_MODULE(Attention);

}  // namespace sherd
