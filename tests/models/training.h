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
constexpr int64_t kSeq = 24;
constexpr int64_t kSteps = 3;

/// One sequence of a step; for a model that sees, some have an image.
Batch sample(int64_t step, int64_t number, bool sees, c10::Device device);

/// How a model is sharded.
struct TrainingOptions {
  World world;
  Placement placement{Strategy::optim_grads_params};
  Placement experts{Strategy::optim_grads_params};  ///< of what ranks have parts of
  int64_t outer = 1;                                ///< groups of ranks
  int64_t cp = 1;                                   ///< ranks that have chunks of each sequence
  int64_t tp = 1;                                   ///< ranks that have parts of the weights
  bool exact = false;                               ///< in fp64, for gradients alone
  std::string recipe{};                             ///< of precision; empty: fp32
  bool sees = false;                                ///< samples have images
  int64_t steps = kSteps;
  double lr = 1e-2;
};

/// What a model has learnt.
struct Learnt {
  std::vector<double> losses;                    ///< of each step, the sum over its samples
  std::map<std::string, at::Tensor> parameters;  ///< whole ones by name
};

class Training {
 public:
  using Make = std::function<std::shared_ptr<LanguageModel>(const LlamaOptions&)>;

  Training(const Make& make, LlamaOptions base, const TrainingOptions& options);
  /// Samples `first` to `last` of each step, one micro-batch each; the losses of this rank's part.
  std::vector<double> train(int64_t samples, int64_t first, int64_t last);
  /// As many samples for each group of ranks that share sequences; the sum of the ranks' losses.
  std::vector<double> train_shared(int64_t samples);
  /// train_shared() with plain SGD, whose updates are in proportion to the gradients, unlike
  /// AdamW's; those of experts times `expert_factor`.
  std::vector<double> descend(int64_t samples, double expert_factor = 1);

  /// The norm of each parameter's gradient, and that of all by the name "", for samples of the
  /// first step: as many for each group of ranks that share sequences. Needs
  /// TrainingOptions::exact.
  std::map<std::string, double> gradient_norms(int64_t samples);

  /// All whole parameters by name.
  std::map<std::string, at::Tensor> parameters() const;
  LanguageModel& model() { return *model_; }
  AdamW& optimizer() { return *optimizer_; }
  SlicesOf slices() const;
  /// Number of groups of ranks that share sequences.
  int64_t groups() const { return world_.size() / sharing_; }
  int64_t steps() const { return steps_; }

 private:
  std::vector<double> train(
      int64_t samples, int64_t first, int64_t last, const std::function<void()>& update);
  /// Adds a rule for each weight of a unit whose products may be in a recipe's precision.
  void add_products(
      const torch::nn::Module& unit,
      const std::string& recipe,
      std::vector<ParameterRule>& rules) const;
  /// The sums of the ranks' losses.
  std::vector<double> summed(std::vector<double> losses) const;
  /// Forward and backward of a step's samples; the loss of this rank's part.
  double pass(int64_t step, int64_t samples, int64_t first, int64_t last);

  World world_;
  bool sees_;
  int64_t sharing_;  // ranks that share sequences
  int64_t steps_;
  std::shared_ptr<LanguageModel> model_;
  std::optional<AdamW> optimizer_;
};

/// Trains `together` on two samples of each rank, or group of ranks that share sequences, and
/// `alone` on all of them, and expects the same losses and parameters.
void expect_learns_alike(Training& together, Training& alone);
/// The same with what one rank has learnt from as many samples, for several comparisons.
void expect_learns_alike(Training& together, const Learnt& alone);
/// Returns what one rank learns from `samples` samples of each step.
Learnt learn_alone(Training& alone, int64_t samples);

}  // namespace sherd::testing
