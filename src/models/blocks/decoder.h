// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/attention_scope.h"
#include "models/blocks/norm.h"
#include "models/blocks/sequence_ranks.h"
#include "sherd/models/language_model.h"
#include "sherd/models/llama.h"
#include "sherd/nn/functional.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

/// A layer of a decoder, and a unit.
struct Layer : torch::nn::Module {
  using torch::nn::Module::Module;
  /// Returns the next x_BSD and, for a layer with experts, the sum of their balance loss.
  virtual std::vector<at::Tensor> forward(const at::Tensor& x_BSD, const AttentionScope& scope) = 0;
  /// Returns whether it sees other positions through AttentionScope only, so that it knows caches
  /// and documents.
  virtual bool keeps_to_scope() const { return true; }
  /// Returns the operations of one token's forward.
  virtual double flops_per_token(int64_t seq) const = 0;
  /// Returns those of them that Recompute::selective repeats in the backward.
  virtual double selective_flops_per_token() const = 0;
};

struct TokenEmbeddingImpl : torch::nn::Module {
  TokenEmbeddingImpl(int64_t vocab, int64_t dim);
  at::Tensor forward(const at::Tensor& tokens_BS);
  at::Tensor weight;
};
SHERD_MODULE(TokenEmbedding);

/// The last norm and the head; a unit unless embeddings are tied.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const LlamaOptions& options);
  /// Returns the sum of the targets' losses, or the logits if there are no targets.
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& targets_BS = {});
  RmsNorm norm{nullptr};
  Linear linear{nullptr};

 private:
  HeadOptions options_;
};
SHERD_MODULE(Head);

/// A language model with any layers. Its modules are `embedding`, `layer0` …, and `head` (`norm` if
/// embeddings are tied).
class Decoder : public LanguageModel {
 public:
  Decoder(
      const char* name,
      const LlamaOptions& options,
      const std::vector<std::shared_ptr<Layer>>& layers);
  at::Tensor forward(const Batch& batch) override;
  at::Tensor logits(const Batch& batch) override;
  at::Tensor next_logits(const Batch& batch, KeyValueCache* cache) override;
  bool caches() const override;
  Batch part_of(const Batch& whole) const override { return ranks_.part_of(whole); }
  bool exchanges() const override { return ranks_.size() > 1 || LanguageModel::exchanges(); }
  std::vector<std::shared_ptr<torch::nn::Module>> units() const override;
  std::optional<InitialValues> initial_values(
      const std::string& name, at::IntArrayRef shape) const override;
  /// Returns those of attention and feed-forward: not the embedding, the head, routers and experts.
  std::vector<std::string> products() const override;
  /// Returns the separate tensors of packed weights.
  std::vector<TensorSlice> slices_of(const std::string& name, at::IntArrayRef shape) const override;
  std::vector<UnitOperations> operations(int64_t seq) const override;

 protected:
  /// Returns the input of the first layer.
  virtual at::Tensor embedded(const Batch& batch);

 private:
  struct Result {
    at::Tensor x_BSD;    // after the last layer
    at::Tensor balance;  // undefined without experts
  };
  Result run(const Batch& batch, KeyValueCache* cache = nullptr);
  void check_length(const Batch& batch, const KeyValueCache* cache) const;
  at::Tensor documents_of(const Batch& batch) const;

  LlamaOptions options_;
  SequenceRanks ranks_;
  TokenEmbedding embedding_{nullptr};
  std::vector<std::shared_ptr<Layer>> layers_;
  RmsNorm norm_{nullptr};
  Head head_{nullptr};
};

}  // namespace sherd
