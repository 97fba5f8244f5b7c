// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "models/blocks/norm.h"
#include "sherd/models/vlm.h"
#include "sherd/nn/linear.h"
#include "sherd/shard/module.h"

namespace sherd {

/// The patch embedding: a vector for each patch, plus an embedding of its position.
struct PatchesImpl : torch::nn::Module {
  explicit PatchesImpl(const VisionOptions& options);
  at::Tensor forward(const at::Tensor& images_I3HW);
  Linear linear{nullptr};
  at::Tensor places_PD;

 private:
  int64_t patch_;
};
SHERD_MODULE(Patches);

/// The tower's last norm, and a matrix from its width to the language model's.
struct BridgeImpl : torch::nn::Module {
  BridgeImpl(int64_t from, int64_t to, double norm_eps);
  at::Tensor forward(const at::Tensor& x_IPD);
  RmsNorm norm{nullptr};
  Linear linear{nullptr};
};
SHERD_MODULE(Bridge);

struct VisionLayer;

/// A transformer over the patches of an image.
struct VisionTowerImpl : torch::nn::Module {
  VisionTowerImpl(const VisionOptions& options, const LlamaOptions& language);
  /// Returns x_IPD, as wide as the language model.
  at::Tensor forward(const at::Tensor& images_I3HW);
  std::vector<std::shared_ptr<torch::nn::Module>> units() const;
  /// Operations of its units for one patch, by their names within the tower.
  std::vector<UnitOperations> operations() const;

 private:
  VisionOptions options_;
  Recompute recompute_;
  int64_t width_;  // of the language model
  Patches patches_{nullptr};
  std::vector<std::shared_ptr<VisionLayer>> layers_;
  Bridge bridge_{nullptr};
};
SHERD_MODULE(VisionTower);

}  // namespace sherd
