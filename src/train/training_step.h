// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "configuration/configuration.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "forecast/graphed_steps.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

/// Trains a model by a step at a time: the passes of its micro-batches and the update. Keeps
/// references to what it is made of.
class TrainingStep {
 public:
  struct Outcome {
    at::Tensor loss;      ///< the sum over this rank's targets: one element, on the device
    int64_t targets = 0;  ///< of all ranks
    int64_t samples = 0;  ///< of all ranks
    std::vector<Finding> findings{};  ///< on CPU, if its gradients were not finite
  };

  /// Throws if train.graph is set for a model whose steps differ.
  TrainingStep(
      const Configuration& configuration,
      const World& world,
      const Dataset& data,
      LanguageModel& model,
      AdamW& optimizer);
  /// Trains on the samples from `position` on. Calls `before_update` before any weight changes.
  /// Collective; returns when the step is enqueued. Throws NotFiniteError only with
  /// train.on_bad_step = "stop".
  Outcome run(int64_t position, const std::function<void()>& before_update);

 private:
  int64_t targets_from(int64_t position) const;
  /// Returns this rank's part of the samples.
  Batch part_of(const std::vector<int64_t>& samples) const;
  void pass_without_samples();
  at::Tensor run_eagerly(
      const std::vector<std::vector<int64_t>>& samples_of,
      const std::function<void(const Batch&, at::Tensor&)>& pass);

  const Configuration& configuration_;
  const World& world_;
  const Dataset& data_;
  LanguageModel& model_;
  AdamW& optimizer_;
  int64_t sharing_;  // ranks that share each sequence
  Sampler sampler_;
  std::optional<GraphedSteps> graph_;
};

}  // namespace sherd
