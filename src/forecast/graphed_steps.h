// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "sherd/models/language_model.h"
#include "sherd/shard/step_graph.h"

namespace sherd {

/// The steps of a run as one CUDA graph: the first two are made as ever, on the stream that
/// captures, the third is captured, and from then on they are replayed. All have as many batches,
/// of one shape.
class GraphedSteps {
 public:
  explicit GraphedSteps(const LanguageModel& model) : graph_(model) {}

  /// Makes a step with these batches: passes and update, which add each loss to a sum. Returns the
  /// sum, on the device.
  using Step = std::function<void(const std::vector<Batch>&, at::Tensor&)>;
  at::Tensor run(const std::vector<Batch>& batches, const Step& step);

 private:
  static constexpr int kBefore = 2;
  StepGraph graph_;
  int made_ = 0;
  std::vector<Batch> batches_;  // where the graph reads
  at::Tensor sum_;              // and writes
};

}  // namespace sherd
