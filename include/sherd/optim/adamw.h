// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {

/// Other settings for some parameters; of several that match, the last one's.
struct AdamWRule {
  /// Full names; '*' stands for anything.
  std::string match;
  std::optional<double> rate_factor{};  ///< times the rate
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<double> epsilon{};
  std::optional<double> decay{};
};

/// A factor on the loss, so that small gradients survive in fp16: halved when gradients overflow
/// (that update is skipped), doubled after many that did not.
struct LossScaling {
  double initial = 65536;
  double growth = 2;
  double backoff = 0.5;
  int64_t interval = 2000;  ///< updates between two growths
};

struct AdamWOptions {
  double rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double decay = 0.01;
  /// Gradients are scaled down where their norm over all parameters and ranks is above; 0: never.
  double max_norm = 0;
  /// Of the moments: fp32 or bf16.
  c10::ScalarType states = c10::kFloat;
  std::vector<AdamWRule> rules{};
  std::optional<LossScaling> scaling{};
};

/// AdamW on the shards of a model: one pass that clips, updates, decays and publishes. Nothing of a
/// step waits for the host on a GPU: rate, step, norm and scale stay on the device.
class SHERD_API AdamW {
 public:
  /// Changes nothing of the model. The model must be sharded whole, root last.
  explicit AdamW(const torch::nn::Module& model, const AdamWOptions& options = {});
  template <class Contained>
  explicit AdamW(const torch::nn::ModuleHolder<Contained>& model, const AdamWOptions& options = {})
      : AdamW(static_cast<const torch::nn::Module&>(*model), options) {}
  ~AdamW();
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;

  /// After the step's last backward: updates, and the model computes with the new weights from the
  /// next pass on. Collective. Where a gradient is not finite, no weight is changed, and unless the
  /// loss is scaled it is an error that names the parameter: on CPU here, on a GPU at a later call.
  void step(const StepOptions& options = {});

  /// For the steps to come.
  void set_rate(double rate);
  /// The loss times its scale; as it is, where it has none. For backward().
  at::Tensor scale(const at::Tensor& loss) const;

  // Each blocks until the steps so far are done.
  double rate() const;
  int64_t updates() const;  ///< made so far
  double loss_scale() const;
  /// Of the last step's gradients, before clipping, over all parameters and ranks.
  double gradient_norm() const;

  /// This rank's elements of both moments, by parameter, in the order of sherd::parameters.
  struct Moments {
    std::string name;
    at::Tensor first;
    at::Tensor second;
  };
  const std::vector<Moments>& moments() const;
  /// What a step needs to know of those before it, beside weights and moments. Both block.
  struct Progress {
    int64_t updates = 0;
    double loss_scale = 0;  ///< 0: the loss is not scaled
    int64_t healthy = 0;    ///< updates since the loss's scale was changed
  };
  Progress progress() const;
  void set_progress(const Progress& progress);
  /// Bytes of the moments on this rank.
  int64_t allocated_bytes() const;
  /// Of its tables and numbers, beside the moments.
  int64_t control_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd
