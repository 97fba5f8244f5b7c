// SPDX-License-Identifier: Apache-2.0
#include "sherd/models/hybrid.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "models/blocks/attention.h"
#include "models/blocks/decoder.h"
#include "models/hybrid/mamba.h"
#include "models/moe/experts.h"

namespace sherd {
namespace {

/// x + mixer(norm(x)), whatever the mixer is.
template <class Mixer>
struct HybridLayer final : Layer {
  HybridLayer(const HybridOptions& options, const Mixer& made) {
    norm = register_module("norm", RmsNorm(options.base.dim, options.base.norm_eps));
    mixer = register_module("mixer", made);
  }
  std::vector<at::Tensor> forward(const at::Tensor& x_BSD) override {
    if constexpr (std::is_same_v<Mixer, Experts>) {
      return mixer->forward_residual(x_BSD, {}, norm);
    } else if constexpr (std::is_same_v<Mixer, Attention>) {
      const auto [sum_BSD, mixed_BSD] = mixer->normed(x_BSD, norm);
      return {sum_BSD + mixed_BSD};
    } else if constexpr (std::is_same_v<Mixer, FeedForward>) {
      return {mixer->forward_residual(x_BSD, {}, norm)};
    } else {
      return {mixer(x_BSD, norm)};
    }
  }
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

std::shared_ptr<Layer> make_layer(char letter, int64_t number, const HybridOptions& options) {
  const auto& base = options.base;
  const auto layer = [&](const auto& mixer) -> std::shared_ptr<Layer> {
    return std::make_shared<HybridLayer<std::decay_t<decltype(mixer)>>>(options, mixer);
  };
  const bool recomputes = base.recomputes(Recompute::selective, number);
  const bool ends_recompute = base.recomputes(Recompute::full, number);
  switch (letter) {
    case 'M': return layer(Mamba(base.dim, base.norm_eps, options.mamba, recomputes));
    case '*': return layer(Attention(attention_of(base)));
    case '-': return layer(FeedForward(base.dim, base.ffn, recomputes, ends_recompute));
    case 'E': return layer(Experts(base.dim, options.experts, recomputes, ends_recompute));
    default:
      TORCH_CHECK_VALUE(
          false, "[models.hybrid] pattern '", options.pattern, "' has a '", letter,
          "': it may have M (Mamba-2), * (attention), - (feed-forward), E (experts)");
  }
}

class Hybrid final : public Decoder {
 public:
  Hybrid(const HybridOptions& options, const std::vector<std::shared_ptr<Layer>>& layers)
      : Decoder("hybrid", options.base, layers), width_(options.mamba.width) {}

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
      const double bound = 1 / std::sqrt(static_cast<double>(width_));
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
  int64_t width_;
};

}  // namespace

std::shared_ptr<LanguageModel> make_hybrid(const HybridOptions& options) {
  TORCH_CHECK_VALUE(
      !options.pattern.empty(), "[models.hybrid] the pattern is empty: give a letter per layer");
  std::vector<std::shared_ptr<Layer>> layers;
  for (int64_t i = 0; i < options.base.layers; ++i) {
    const auto letter = options.pattern[static_cast<size_t>(i) % options.pattern.size()];
    layers.push_back(make_layer(letter, i, options));
  }
  return std::make_shared<Hybrid>(options, layers);
}

}  // namespace sherd
