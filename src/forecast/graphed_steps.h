// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "sherd/models/language_model.h"
#include "sherd/shard/step_graph.h"

namespace sherd {

/// The steps of a run as one CUDA graph: the first two run eagerly on the capture stream, the third
/// is captured, and from then on steps are replays. All steps have the same number of batches, of
/// one shape.
class GraphedSteps {
 public:
  explicit GraphedSteps(const LanguageModel& model) : graph_(model) {}

  /// A function that makes a step with these batches (passes and update) and adds each loss to a
  /// sum.
  using Step = std::function<void(const std::vector<Batch>&, at::Tensor&)>;
  /// Runs or replays a step and returns the sum of its losses, on the device.
  at::Tensor run(const std::vector<Batch>& batches, const Step& step);

 private:
  static constexpr int kBefore = 2;
  StepGraph graph_;
  int made_ = 0;
  std::vector<Batch> batches_;  // the graph's inputs
  at::Tensor sum_;              // the graph's result
};

}  // namespace sherd
