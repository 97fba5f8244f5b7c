// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "sherd/models/llama.h"
#include "sherd/optim/adamw.h"
#include "sherd/plan/placement.h"
#include "sherd/shard/fully_shard.h"

// A small model of any kind in training, on samples that depend on their number alone.
namespace sherd::testing {

constexpr int64_t kVocab = 48;
constexpr int64_t kSeq = 20;
constexpr int64_t kSteps = 3;

/// One sequence of a step; for a model that sees, some have an image.
Batch sample(int64_t step, int64_t number, bool sees, c10::Device device);

/// How a model is sharded.
struct TrainingOptions {
  World world;
  Placement placement{Strategy::optim_grads_params};
  Placement experts{Strategy::optim_grads_params};  ///< of those that ranks share
  int64_t outer = 1;                                ///< groups of ranks
  bool sees = false;                                ///< samples have images
};

class Training {
 public:
  using Make = std::function<std::shared_ptr<LanguageModel>(const LlamaOptions&)>;

  Training(const Make& make, LlamaOptions base, const TrainingOptions& options);
  /// Samples `first` to `last` of each step, one micro-batch each; the losses.
  std::vector<double> train(int64_t samples, int64_t first, int64_t last);

  /// All whole parameters by name.
  std::map<std::string, at::Tensor> parameters() const;
  LanguageModel& model() { return *model_; }
  AdamW& optimizer() { return *optimizer_; }
  SlicesOf slices() const;

 private:
  World world_;
  bool sees_;
  std::shared_ptr<LanguageModel> model_;
  std::optional<AdamW> optimizer_;
};

/// Trains `together` on two samples of each rank and `alone` on all of them, and expects the same
/// losses and the same
/// parameters.
void expect_learns_alike(Training& together, Training& alone);

}  // namespace sherd::testing
