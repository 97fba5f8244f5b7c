// SPDX-License-Identifier: Apache-2.0
// Shapes: I images, P patches of an image, D dim, H and W pixels.
#include "models/vlm/vision.h"

#include <ATen/ops/empty.h>

#include "models/blocks/attention.h"
#include "models/blocks/feed_forward.h"
#include "models/blocks/layer_name.h"
#include "sherd/nn/recompute.h"

namespace sherd {

struct VisionLayer final : torch::nn::Module {
  VisionLayer(const VisionOptions& options, const LlamaOptions& language) {
    attention_norm = register_module("attention_norm", RmsNorm(options.dim, language.norm_eps));
    attention = register_module(
        "attention", Attention(AttentionOptions{
                         .dim = options.dim,
                         .heads = options.heads,
                         .kv_heads = options.heads,
                         .head_dim = options.dim / options.heads,
                         .causal = false}));
    feed_forward_norm =
        register_module("feed_forward_norm", RmsNorm(options.dim, language.norm_eps));
    feed_forward = register_module(
        "feed_forward",
        FeedForward(options.dim, options.ffn, language.recompute == Recompute::selective));
  }
  at::Tensor forward(const at::Tensor& x_IPD) {
    const auto mixed_IPD = x_IPD + attention(attention_norm(x_IPD));
    return mixed_IPD + feed_forward(feed_forward_norm(mixed_IPD));
  }
  double flops_per_patch(int64_t patches) const {
    return attention->flops_per_token(patches) + feed_forward->flops_per_token();
  }
  double selective_flops_per_patch() const { return feed_forward->recomputed_flops_per_token(); }
  RmsNorm attention_norm{nullptr}, feed_forward_norm{nullptr};
  Attention attention{nullptr};
  FeedForward feed_forward{nullptr};
};

PatchesImpl::PatchesImpl(const VisionOptions& options) : patch_(options.patch) {
  linear = register_module("linear", plain_linear(3 * patch_ * patch_, options.dim));
  places_PD = register_parameter("places", at::empty({options.patches(), options.dim}));
}

at::Tensor PatchesImpl::forward(const at::Tensor& images_I3HW) {
  const auto apart = images_I3HW.unflatten(3, {-1, patch_}).unflatten(2, {-1, patch_});
  // [I, 3, rows, patch, columns, patch] to [I, rows · columns, 3 · patch · patch]
  const auto patches = apart.permute({0, 2, 4, 1, 3, 5}).flatten(3).flatten(1, 2);
  return linear(patches) + places_PD;
}

BridgeImpl::BridgeImpl(int64_t from, int64_t to, double norm_eps) {
  norm = register_module("norm", RmsNorm(from, norm_eps));
  linear = register_module("linear", plain_linear(from, to));
}

at::Tensor BridgeImpl::forward(const at::Tensor& x_IPD) {
  return linear(norm(x_IPD));
}

VisionTowerImpl::VisionTowerImpl(const VisionOptions& options, const LlamaOptions& language)
    : options_(options), recompute_(language.recompute), width_(language.dim) {
  patches_ = register_module("patches", Patches(options));
  for (int64_t i = 0; i < options.layers; ++i) {
    layers_.push_back(register_module(
        layer_name(layers_.size()), std::make_shared<VisionLayer>(options, language)));
  }
  bridge_ = register_module("bridge", Bridge(options.dim, language.dim, language.norm_eps));
}

at::Tensor VisionTowerImpl::forward(const at::Tensor& images_I3HW) {
  auto x_IPD = patches_(images_I3HW);
  for (const auto& layer : layers_) {
    const auto through = [layer](const at::Tensor& x) { return call(*layer, x); };
    x_IPD = recompute_ == Recompute::full ? recompute(through, x_IPD) : through(x_IPD);
  }
  return bridge_(x_IPD);
}

std::vector<std::shared_ptr<torch::nn::Module>> VisionTowerImpl::units() const {
  std::vector<std::shared_ptr<torch::nn::Module>> result{patches_.ptr()};
  for (const auto& layer : layers_) result.push_back(layer);
  result.push_back(bridge_.ptr());
  return result;
}

std::vector<UnitOperations> VisionTowerImpl::operations() const {
  const int64_t pixels = 3 * options_.patch * options_.patch;
  std::vector<UnitOperations> result{{"patches", product_flops(pixels, options_.dim)}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    // If any layers of the language model are recomputed, all of the tower are.
    const auto& layer = *layers_[i];
    result.push_back(
        {layer_name(i), layer.flops_per_patch(options_.patches()),
         layer.selective_flops_per_patch(), 0});
  }
  result.push_back({"bridge", product_flops(options_.dim, width_)});
  return result;
}

}  // namespace sherd
