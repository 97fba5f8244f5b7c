// SPDX-License-Identifier: Apache-2.0
#include "sherd/models/hybrid.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "models/blocks/attention.h"
#include "models/blocks/decoder.h"
#include "models/blocks/part_rules.h"
#include "models/huggingface/families.h"
#include "models/hybrid/huggingface.h"
#include "models/hybrid/mamba.h"
#include "models/moe/experts.h"

namespace sherd {
namespace {

// Attention has a name of its own, by which rules tell its weights from a Mamba-2's; checkpoints
// have the same name for all.
constexpr const char* kMixer = "mixer";
constexpr const char* kAttention = "attention";

/// x + mixer(norm(x)), whatever the mixer is.
template <class Mixer>
struct HybridLayer final : Layer {
  HybridLayer(const HybridOptions& options, const Mixer& made) {
    norm = register_module("norm", RmsNorm(options.base.dim, options.base.norm_eps));
    mixer = register_module(std::is_same_v<Mixer, Attention> ? kAttention : kMixer, made);
  }
  std::vector<at::Tensor> forward(
      const at::Tensor& x_BSD, [[maybe_unused]] const AttentionScope& scope) override {
    if constexpr (std::is_same_v<Mixer, Experts>) {
      return mixer->forward_residual(x_BSD, {}, norm);
    } else if constexpr (std::is_same_v<Mixer, Attention>) {
      const auto [sum_BSD, mixed_BSD] = mixer->normed(x_BSD, norm, scope);
      return {sum_BSD + mixed_BSD};
    } else if constexpr (std::is_same_v<Mixer, FeedForward>) {
      return {mixer->forward_residual(x_BSD, {}, norm)};
    } else {
      return {mixer(x_BSD, norm)};
    }
  }
  bool keeps_to_scope() const override { return !std::is_same_v<Mixer, Mamba>; }
  double flops_per_token(int64_t seq) const override {
    if constexpr (std::is_same_v<Mixer, Attention> || std::is_same_v<Mixer, Mamba>) {
      return mixer->flops_per_token(seq);
    } else {
      return mixer->flops_per_token();
    }
  }
  double selective_flops_per_token() const override {
    if constexpr (std::is_same_v<Mixer, Attention>) {
      return 0;
    } else {
      return mixer->recomputed_flops_per_token();
    }
  }
  RmsNorm norm{nullptr};
  Mixer mixer{nullptr};
};

AttentionOptions hybrid_attention(const HybridOptions& options) {
  auto result = attention_of(options.base);
  result.rotary->rotated = options.rotated_dims();
  return result;
}

std::shared_ptr<Layer> make_layer(char letter, int64_t number, const HybridOptions& options) {
  const auto& base = options.base;
  const auto layer = [&](const auto& mixer) -> std::shared_ptr<Layer> {
    return std::make_shared<HybridLayer<std::decay_t<decltype(mixer)>>>(options, mixer);
  };
  const SequenceRanks ranks(base.mesh);
  const bool recomputes = base.recomputes(Recompute::selective, number);
  const bool ends_recompute = base.recomputes(Recompute::full, number);
  switch (letter) {
    case 'M': return layer(Mamba(base.dim, base.norm_eps, options.mamba, recomputes, ranks));
    case '*': return layer(Attention(hybrid_attention(options)));
    case '-':
      return layer(FeedForward(base.dim, base.ffn, recomputes, ends_recompute, ranks.tensor));
    case 'E': return layer(Experts(base.dim, options.experts, recomputes, ends_recompute, ranks));
    default:
      TORCH_CHECK_VALUE(
          false, "[models.hybrid] pattern '", options.pattern, "' has a '", letter,
          "': it may have M (Mamba-2), * (attention), - (feed-forward), E (experts)");
  }
}

// Note [Heads with partial rotary embeddings]
// Attention rotates dim i of a head with dim i + head_dim/2. Where only the first r dims of a head
// are to be rotated, checkpoints have i and i + r/2 as pairs. So the rows of queries and keys have
// another order in the model: both halves of a head begin with r/2 rotated dims, and the angles of
// all others are 0. Queries and keys have the same order, so their products are the same.

/// Returns the slices of a head's rows, for all heads of a tensor, in the order of the model.
std::vector<TensorSlice> halved_heads(const TensorSlice& slice, int64_t head_dim, int64_t rotated) {
  const int64_t pair = rotated / 2, middle = (rotated + head_dim) / 2;
  std::vector<TensorSlice> result;
  for (int64_t head = 0; head < slice.shape[0]; head += head_dim) {
    for (const auto& [begin, end] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {0, pair}, {rotated, middle}, {pair, rotated}, {middle, head_dim}}) {
      auto part = slice;
      for (const int64_t size : slice.shape) part.ranges.emplace_back(0, size);
      part.ranges[0] = {head + begin, head + end};
      result.push_back(std::move(part));
    }
  }
  return result;
}

/// Returns a parameter's name in checkpoints.
std::string stored_name(const std::string& name) {
  const auto begin = name.find(std::string(".") + kAttention + ".");
  if (begin == std::string::npos) return name;
  return std::string(name).replace(begin + 1, std::strlen(kAttention), kMixer);
}

/// Returns the rules for all layers that there are.
std::vector<ParameterRule> rules_of(const HybridOptions& options) {
  std::string letters;
  for (int64_t i = 0; i < options.base.layers; ++i) letters += options.letter(i);
  const auto has = [&](char letter) { return letters.find(letter) != std::string::npos; };
  PartRules parts(options.base.mesh);
  const int64_t dim = options.base.dim, shared = options.experts.shared_ffn;
  if (has('*')) parts.add_attention(kAttention, hybrid_attention(options));
  if (has('-')) parts.add_feed_forward(kMixer, dim, options.base.ffn);
  if (has('E') && shared > 0) parts.add_feed_forward(kMixer + std::string(".shared"), dim, shared);
  auto rules = parts.rules();
  if (!has('E')) return rules;
  for (auto& rule : expert_rules(options.experts, dim)) rules.push_back(std::move(rule));
  return rules;
}

class Hybrid final : public Decoder {
 public:
  Hybrid(const HybridOptions& options, const std::vector<std::shared_ptr<Layer>>& layers)
      : Decoder("hybrid", options.base, layers), options_(options), is_bamba_(is_bamba(options)) {
    if (is_bamba_) config_ = config_json(options);
    rules_ = rules_of(options);
  }

  std::vector<TensorSlice> slices_of(
      const std::string& name, at::IntArrayRef shape) const override {
    std::vector<TensorSlice> result;
    const int64_t head_dim = options_.base.head_dim, rotated = options_.rotated_dims();
    for (auto& slice : Decoder::slices_of(stored_name(name), shape)) {
      const bool turns = slice.tensor.find(".mixer.query") != std::string::npos ||
                         slice.tensor.find(".mixer.key") != std::string::npos;
      if (is_bamba_) slice = bamba_slice(options_, std::move(slice));
      if (!turns || rotated == head_dim) {
        result.push_back(std::move(slice));
        continue;
      }
      for (auto& part : halved_heads(slice, head_dim, rotated)) result.push_back(std::move(part));
    }
    return result;
  }
  std::optional<std::string> config() const override { return config_; }
  std::vector<ParameterRule> rules() const override { return rules_; }

  /// A Mamba-2 begins with decays of 1 to 16 and steps of about 0.001 to 0.1, both evenly in their
  /// logarithm: softplus of so small a step's logarithm is the step.
  std::optional<InitialValues> initial_values(
      const std::string& name, at::IntArrayRef shape) const override {
    if (name.ends_with("mixer.decay_log")) return InitialValues::uniform(0, std::log(16));
    if (name.ends_with("mixer.step_bias")) {
      return InitialValues::uniform(std::log(1e-3), std::log(1e-1));
    }
    if (name.ends_with("mixer.through")) return InitialValues::constant(1);
    if (name.ends_with("mixer.filter_bias")) return InitialValues::constant(0);
    if (name.ends_with("mixer.filter")) {
      const double bound = 1 / std::sqrt(static_cast<double>(options_.mamba.width));
      return InitialValues::uniform(-bound, bound);
    }
    return Decoder::initial_values(name, shape);
  }

  std::vector<std::string> products() const override {
    auto result = Decoder::products();
    result.push_back("*.mixer.input.weight");  // of Mamba-2
    return result;
  }

 private:
  HybridOptions options_;
  bool is_bamba_;
  std::vector<ParameterRule> rules_;
  std::optional<std::string> config_;
};

}  // namespace

std::shared_ptr<LanguageModel> make_hybrid(const HybridOptions& options) {
  TORCH_CHECK_VALUE(
      !options.pattern.empty(), "[models.hybrid] the pattern is empty: give a letter per layer");
  const int64_t rotated = options.rotated_dims();
  TORCH_CHECK_VALUE(
      options.rope_fraction <= 1 && rotated > 0 && rotated % 2 == 0,
      "[models.hybrid] rope_fraction = ", options.rope_fraction,
      ": it must be at most 1, and give an even number of the ", options.base.head_dim,
      " dims of a head");
  std::vector<std::shared_ptr<Layer>> layers;
  for (int64_t i = 0; i < options.base.layers; ++i) {
    layers.push_back(make_layer(options.letter(i), i, options));
  }
  return std::make_shared<Hybrid>(options, layers);
}

}  // namespace sherd
