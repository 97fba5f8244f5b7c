// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim, H heads, K heads of keys and values, V vocab.
#include "sherd/models/llama.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "models/llama/rotary.h"
#include "sherd/nn/linear.h"
#include "sherd/nn/recompute.h"
#include "sherd/shard/module.h"

namespace sherd {
namespace {

Linear plain_linear(int64_t in, int64_t out) {
  return Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct RmsNormImpl : torch::nn::Module {
  RmsNormImpl(int64_t dim, double epsilon) : epsilon_(epsilon) {
    weight = register_parameter("weight", at::ones({dim}));
  }
  at::Tensor forward(const at::Tensor& x_BSD) {
    return at::rms_norm(x_BSD, weight.sizes(), weight, epsilon_);
  }
  at::Tensor weight;

 private:
  double epsilon_;
};
SHERD_MODULE(RmsNorm);

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(const LlamaOptions& options) : options_(options), rotary_(options) {
    const int64_t width = options.heads * options.head_dim;
    const int64_t narrow = options.kv_heads * options.head_dim;
    query = register_module("query", plain_linear(options.dim, width));
    key = register_module("key", plain_linear(options.dim, narrow));
    value = register_module("value", plain_linear(options.dim, narrow));
    output = register_module("output", plain_linear(width, options.dim));
  }
  at::Tensor forward(const at::Tensor& x_BSD) {
    const auto query_BHSd = rotary_(split(query(x_BSD)));
    const auto key_BKSd = rotary_(split(key(x_BSD)));
    const auto value_BKSd = split(value(x_BSD));
    const auto mixed_BHSd = at::scaled_dot_product_attention(
        query_BHSd, key_BKSd, value_BKSd, {}, /*dropout_p=*/0, /*is_causal=*/true,
        /*scale=*/std::nullopt, /*enable_gqa=*/options_.kv_heads != options_.heads);
    return output(mixed_BHSd.transpose(1, 2).flatten(2));
  }
  Linear query{nullptr}, key{nullptr}, value{nullptr}, output{nullptr};

 private:
  /// Heads apart.
  at::Tensor split(const at::Tensor& x) const {
    return x.unflatten(-1, {-1, options_.head_dim}).transpose(1, 2);
  }
  LlamaOptions options_;
  Rotary rotary_;
};
SHERD_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Module {
  explicit FeedForwardImpl(const LlamaOptions& options)
      : recomputes_(options.recompute == Recompute::selective) {
    gate = register_module("gate", plain_linear(options.dim, options.ffn));
    up = register_module("up", plain_linear(options.dim, options.ffn));
    down = register_module("down", plain_linear(options.ffn, options.dim));
  }
  at::Tensor forward(const at::Tensor& x_BSD) {
    const auto gated = [](const at::Tensor& opened, const at::Tensor& raised) {
      return at::silu(opened) * raised;
    };
    const auto opened = gate(x_BSD);
    const auto raised = up(x_BSD);
    return down(recomputes_ ? recompute(gated, opened, raised) : gated(opened, raised));
  }
  Linear gate{nullptr}, up{nullptr}, down{nullptr};

 private:
  bool recomputes_;
};
SHERD_MODULE(FeedForward);

struct LlamaLayerImpl : torch::nn::Module {
  explicit LlamaLayerImpl(const LlamaOptions& options) {
    attention_norm = register_module("attention_norm", RmsNorm(options.dim, options.norm_eps));
    attention = register_module("attention", Attention(options));
    feed_forward_norm =
        register_module("feed_forward_norm", RmsNorm(options.dim, options.norm_eps));
    feed_forward = register_module("feed_forward", FeedForward(options));
  }
  at::Tensor forward(at::Tensor x_BSD) {
    x_BSD = x_BSD + attention(attention_norm(x_BSD));
    return x_BSD + feed_forward(feed_forward_norm(x_BSD));
  }
  RmsNorm attention_norm{nullptr}, feed_forward_norm{nullptr};
  Attention attention{nullptr};
  FeedForward feed_forward{nullptr};
};
SHERD_MODULE(LlamaLayer);

struct TokenEmbeddingImpl : torch::nn::Module {
  TokenEmbeddingImpl(int64_t vocab, int64_t dim) {
    weight = register_parameter("weight", at::empty({vocab, dim}));
  }
  at::Tensor forward(const at::Tensor& tokens_BS) { return at::embedding(weight, tokens_BS); }
  at::Tensor weight;
};
SHERD_MODULE(TokenEmbedding);

/// The sum over all targets, in fp32.
at::Tensor loss_of(const at::Tensor& logits_BSV, const at::Tensor& targets_BS) {
  return at::cross_entropy_loss(
      logits_BSV.flatten(0, 1).to(at::kFloat), targets_BS.flatten(), {}, at::Reduction::Sum,
      /*ignore_index=*/-100);
}

/// The last norm and the head; untied, a unit.
struct LlamaHeadImpl : torch::nn::Module {
  explicit LlamaHeadImpl(const LlamaOptions& options) {
    norm = register_module("norm", RmsNorm(options.dim, options.norm_eps));
    linear = register_module("linear", plain_linear(options.dim, options.vocab));
  }
  at::Tensor forward(const at::Tensor& x_BSD) { return linear(norm(x_BSD)); }
  RmsNorm norm{nullptr};
  Linear linear{nullptr};
};
SHERD_MODULE(LlamaHead);

class Llama final : public LanguageModel {
 public:
  explicit Llama(const LlamaOptions& options) : LanguageModel("llama"), options_(options) {
    embedding_ = register_module("embedding", TokenEmbedding(options.vocab, options.dim));
    for (int64_t i = 0; i < options.layers; ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i), LlamaLayer(options)));
    }
    if (options.tie_embeddings) {
      norm_ = register_module("norm", RmsNorm(options.dim, options.norm_eps));
    } else {
      head_ = register_module("head", LlamaHead(options));
    }
  }

  at::Tensor forward(at::Tensor tokens_BS, at::Tensor targets_BS) override {
    return loss_of(logits(tokens_BS), targets_BS);
  }

  at::Tensor logits(at::Tensor tokens_BS) override {
    auto x_BSD = embedding_(tokens_BS);
    for (auto& layer : layers_) {
      if (options_.recompute == Recompute::full) {
        x_BSD = recompute([layer](const at::Tensor& x) mutable { return layer(x); }, x_BSD);
      } else {
        x_BSD = layer(x_BSD);
      }
    }
    return options_.tie_embeddings ? sherd::linear(norm_(x_BSD), embedding_->weight) : head_(x_BSD);
  }

  std::vector<std::shared_ptr<torch::nn::Module>> units() const override {
    std::vector<std::shared_ptr<torch::nn::Module>> result;
    if (!options_.tie_embeddings) result.push_back(embedding_.ptr());
    for (const auto& layer : layers_) result.push_back(layer.ptr());
    if (!options_.tie_embeddings) result.push_back(head_.ptr());
    return result;
  }

  std::optional<InitialValues> initial_values(
      const std::string&, at::IntArrayRef shape) const override {
    return shape.size() == 1 ? InitialValues::constant(1)
                             : InitialValues::normal(0, options_.init_std);
  }

  double flops_per_token(int64_t seq) const override {
    const auto& o = options_;
    const auto product = [](int64_t in, int64_t out) {
      return 2.0 * static_cast<double>(in) * static_cast<double>(out);
    };
    const int64_t width = o.heads * o.head_dim;
    const double layer = 2 * product(o.dim, width) + 2 * product(o.dim, o.kv_heads * o.head_dim) +
                         3 * product(o.dim, o.ffn) +
                         product(width, seq);  // both products of causal attention, each half
    return 3 * (static_cast<double>(o.layers) * layer + product(o.dim, o.vocab));
  }

 private:
  LlamaOptions options_;
  TokenEmbedding embedding_{nullptr};
  std::vector<LlamaLayer> layers_;
  RmsNorm norm_{nullptr};
  LlamaHead head_{nullptr};
};

}  // namespace

std::shared_ptr<LanguageModel> make_llama(const LlamaOptions& options) {
  return std::make_shared<Llama>(options);
}

}  // namespace sherd
