// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/norm.h"
#include "sherd/models/language_model.h"
#include "sherd/models/llama.h"
#include "sherd/nn/functional.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

/// A layer of a decoder, and a unit.
struct Layer : torch::nn::Module {
  using torch::nn::Module::Module;
  /// What x_BSD becomes and, of a layer with experts, the sum of their balance loss.
  virtual std::vector<at::Tensor> forward(const at::Tensor& x_BSD) = 0;
  /// Of one token's forward.
  virtual double flops_per_token(int64_t seq) const = 0;
};

struct TokenEmbeddingImpl : torch::nn::Module {
  TokenEmbeddingImpl(int64_t vocab, int64_t dim);
  at::Tensor forward(const at::Tensor& tokens_BS);
  at::Tensor weight;
};
SHERD_MODULE(TokenEmbedding);

/// The last norm and the head; untied, a unit.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const LlamaOptions& options);
  /// With targets the sum of their losses, else logits.
  at::Tensor forward(const at::Tensor& x_BSD, const at::Tensor& targets_BS = {});
  RmsNorm norm{nullptr};
  Linear linear{nullptr};

 private:
  HeadOptions options_;
};
SHERD_MODULE(Head);

/// From tokens to the loss through any layers: `embedding`, `layer0` …, `head` (tied: `norm`).
class Decoder : public LanguageModel {
 public:
  Decoder(
      const char* name,
      const LlamaOptions& options,
      const std::vector<std::shared_ptr<Layer>>& layers);
  at::Tensor forward(const Batch& batch) override;
  at::Tensor logits(const Batch& batch) override;
  std::vector<std::shared_ptr<torch::nn::Module>> units() const override;
  std::optional<InitialValues> initial_values(
      const std::string& name, at::IntArrayRef shape) const override;
  /// Products that are packed here are several there.
  std::vector<TensorSlice> slices_of(const std::string& name, at::IntArrayRef shape) const override;
  std::vector<UnitOperations> operations(int64_t seq) const override;

 protected:
  /// What the first layer is given.
  virtual at::Tensor embedded(const Batch& batch);

 private:
  struct Result {
    at::Tensor x_BSD;    // after the last layer
    at::Tensor balance;  // undefined without experts
  };
  Result run(const Batch& batch);

  LlamaOptions options_;
  TokenEmbedding embedding_{nullptr};
  std::vector<std::shared_ptr<Layer>> layers_;
  RmsNorm norm_{nullptr};
  Head head_{nullptr};
};

}  // namespace sherd
