// SPDX-License-Identifier: Apache-2.0
#include "sherd/models/moe.h"

#include "models/blocks/attention.h"
#include "models/blocks/decoder.h"
#include "models/blocks/part_rules.h"
#include "models/huggingface/families.h"
#include "models/moe/experts.h"
#include "models/moe/huggingface.h"

namespace sherd {
namespace {

struct MoeLayer final : Layer {
  MoeLayer(const MoeOptions& options, int64_t number) {
    const auto& base = options.base;
    attention_norm = register_module("attention_norm", RmsNorm(base.dim, base.norm_eps));
    attention = register_module("attention", Attention(attention_of(base)));
    experts_norm = register_module("experts_norm", RmsNorm(base.dim, base.norm_eps));
    experts = register_module(
        "experts", Experts(
                       base.dim, options.experts, base.recomputes(Recompute::selective, number),
                       base.recomputes(Recompute::full, number), SequenceRanks(base.mesh)));
  }
  std::vector<at::Tensor> forward(const at::Tensor& x_BSD, const AttentionScope& scope) override {
    const auto [sum_BSD, mixed_BSD] = attention->normed(x_BSD, attention_norm, scope);
    return experts->forward_residual(mixed_BSD, sum_BSD, experts_norm);
  }
  double flops_per_token(int64_t seq) const override {
    return attention->flops_per_token(seq) + experts->flops_per_token();
  }
  double selective_flops_per_token() const override {
    return experts->recomputed_flops_per_token();
  }
  RmsNorm attention_norm{nullptr}, experts_norm{nullptr};
  Attention attention{nullptr};
  Experts experts{nullptr};
};

class Moe final : public Decoder {
 public:
  Moe(const MoeOptions& options, const std::vector<std::shared_ptr<Layer>>& layers)
      : Decoder("moe", options.base, layers),
        family_(moe_family(options)),
        rules_(expert_rules(options.experts, options.base.dim)) {
    if (family_ != MoeFamily::none) config_ = config_json(options);
    PartRules parts(options.base.mesh);
    parts.add_attention("attention", attention_of(options.base));
    if (options.experts.shared_ffn > 0) {
      parts.add_feed_forward("experts.shared", options.base.dim, options.experts.shared_ffn);
    }
    rules_.insert(rules_.end(), parts.rules().begin(), parts.rules().end());
  }
  std::vector<TensorSlice> slices_of(
      const std::string& name, at::IntArrayRef shape) const override {
    auto slices = Decoder::slices_of(name, shape);
    if (family_ == MoeFamily::none) return slices;
    std::vector<TensorSlice> result;
    for (const auto& slice : slices) {
      for (auto& one : moe_slices(family_, slice)) result.push_back(std::move(one));
    }
    return result;
  }
  std::optional<std::string> config() const override { return config_; }
  std::vector<ParameterRule> rules() const override { return rules_; }

 private:
  MoeFamily family_;
  std::vector<ParameterRule> rules_;
  std::optional<std::string> config_;
};

}  // namespace

std::shared_ptr<LanguageModel> make_moe(const MoeOptions& options) {
  std::vector<std::shared_ptr<Layer>> layers;
  for (int64_t i = 0; i < options.base.layers; ++i) {
    layers.push_back(std::make_shared<MoeLayer>(options, i));
  }
  return std::make_shared<Moe>(options, layers);
}

}  // namespace sherd
