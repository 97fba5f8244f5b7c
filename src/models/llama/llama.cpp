// SPDX-License-Identifier: Apache-2.0
#include "sherd/models/llama.h"

#include <c10/util/Exception.h>

#include "models/blocks/attention.h"
#include "models/blocks/decoder.h"
#include "models/blocks/feed_forward.h"
#include "models/blocks/part_rules.h"
#include "models/huggingface/base_config.h"
#include "models/huggingface/families.h"
#include "models/llama/llama_layer.h"

namespace sherd {
namespace {

struct LlamaLayer final : Layer {
  LlamaLayer(const LlamaOptions& options, int64_t number) {
    attention_norm = register_module("attention_norm", RmsNorm(options.dim, options.norm_eps));
    attention = register_module("attention", Attention(attention_of(options)));
    feed_forward_norm =
        register_module("feed_forward_norm", RmsNorm(options.dim, options.norm_eps));
    feed_forward = register_module(
        "feed_forward",
        FeedForward(
            options.dim, options.ffn, options.recomputes(Recompute::selective, number),
            options.recomputes(Recompute::full, number), SequenceRanks(options.mesh).tensor));
  }
  std::vector<at::Tensor> forward(const at::Tensor& x_BSD, const AttentionScope& scope) override {
    const auto [residual_BSD, attention_out_BSD] = attention->normed(x_BSD, attention_norm, scope);
    return {feed_forward->forward_residual(attention_out_BSD, residual_BSD, feed_forward_norm)};
  }
  double flops_per_token(int64_t seq) const override {
    return attention->flops_per_token(seq) + feed_forward->flops_per_token();
  }
  double selective_flops_per_token() const override {
    return feed_forward->recomputed_flops_per_token();
  }
  RmsNorm attention_norm{nullptr}, feed_forward_norm{nullptr};
  Attention attention{nullptr};
  FeedForward feed_forward{nullptr};
};

class Llama final : public Decoder {
 public:
  explicit Llama(const LlamaOptions& options) : Decoder("llama", options, llama_layers(options)) {
    if (!options.qk_norm_across) config_ = config_json(options);
    PartRules parts(options.mesh);
    parts.add_attention("attention", attention_of(options));
    parts.add_feed_forward("feed_forward", options.dim, options.ffn);
    rules_ = parts.rules();
  }
  std::vector<TensorSlice> slices_of(
      const std::string& name, at::IntArrayRef shape) const override {
    auto slices = Decoder::slices_of(name, shape);
    if (!config_) return slices;
    for (auto& slice : slices) slice.tensor = base_name(slice.tensor);
    return slices;
  }
  std::optional<std::string> config() const override { return config_; }
  std::vector<ParameterRule> rules() const override { return rules_; }

 private:
  std::vector<ParameterRule> rules_;
  std::optional<std::string> config_;
};

}  // namespace

std::vector<std::shared_ptr<Layer>> llama_layers(const LlamaOptions& options) {
  std::vector<std::shared_ptr<Layer>> layers;
  for (int64_t i = 0; i < options.layers; ++i) {
    layers.push_back(std::make_shared<LlamaLayer>(options, i));
  }
  return layers;
}

std::shared_ptr<LanguageModel> make_llama(const LlamaOptions& options) {
  TORCH_CHECK_VALUE(
      !options.qkv_bias || !options.qk_norm,
      "[models.llama] qkv_bias and qk_norm are both set: set one of them, as Qwen2 and Qwen3 do");
  TORCH_CHECK_VALUE(
      options.qk_norm || !options.qk_norm_across,
      "[models.llama] qk_norm_across is set without qk_norm: set both, as OLMoE does");
  return std::make_shared<Llama>(options);
}

}  // namespace sherd
