// SPDX-License-Identifier: Apache-2.0
#include "train/training_step.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "configuration/axes.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "train/run_inputs.h"

namespace sherd {

TrainingStep::TrainingStep(
    const Configuration& configuration,
    const World& world,
    const Dataset& data,
    LanguageModel& model,
    AdamW& optimizer)
    : configuration_(configuration),
      world_(world),
      data_(data),
      model_(model),
      optimizer_(optimizer),
      sharing_(sharing_ranks_of(configuration)),
      sampler_(sampling_of(configuration, data, data_ranks_of(configuration, world.size()))) {
  if (!configuration.train.graph) return;
  TORCH_CHECK_VALUE(
      !data.has_images(),
      "[train] train.graph = true: a model of kind \"vlm\" runs its vision tower for some "
      "batches only, and a graph always repeats the same step; set train.graph = false");
  TORCH_CHECK_VALUE(
      data.fills_samples(), "[train] train.graph = true: ", data.tokens().path(),
      " masks tokens, so steps have different numbers of targets, and a graph always repeats the "
      "same step; set train.graph = false");
  graph_.emplace(model);
}

/// Returns the number of targets of all ranks.
int64_t TrainingStep::targets_from(int64_t position) const {
  if (data_.fills_samples()) return sampler_.samples_from(position) * configuration_.data.seq;
  int64_t targets = 0;
  for (int64_t i = 0; i < configuration_.data.micro_batches; ++i) {
    for (int64_t rank = 0; rank < world_.size() / sharing_; ++rank) {
      for (const int64_t sample : sampler_.samples(position, i, rank)) {
        targets += data_.targets_in(sample);
      }
    }
  }
  return targets;
}

Batch TrainingStep::part_of(const std::vector<int64_t>& samples) const {
  return model_.part_of(data_.load(samples, world_.device()));
}

void TrainingStep::pass_without_samples() {
  if (!model_.exchanges()) return idle_pass(model_);
  const auto loss = call(model_, model_.part_of(data_.without_targets(world_.device())));
  optimizer_.scale(loss * 0).backward();  // the experts' balance does not count either
}

at::Tensor TrainingStep::run_eagerly(
    const std::vector<std::vector<int64_t>>& samples_of,
    const std::function<void(const Batch&, at::Tensor&)>& pass) {
  auto total = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world_.device()));
  for (const auto& samples : samples_of) {
    if (samples.empty()) {
      pass_without_samples();
    } else {
      const auto batch = part_of(samples);
      pass(batch, total);
    }
  }
  return total;
}

TrainingStep::Outcome TrainingStep::run(
    int64_t position, const std::function<void()>& before_update) {
  const auto& data = configuration_.data;
  const bool per_token = configuration_.train.loss == "per_token";
  Outcome outcome;
  outcome.targets = std::max<int64_t>(1, targets_from(position));
  outcome.samples = sampler_.samples_from(position);
  // Sherd takes the mean over the ranks; all together it is the mean over the step's targets.
  const double weight =
      per_token ? 1 : static_cast<double>(world_.size()) / static_cast<double>(outcome.targets);
  std::vector<std::vector<int64_t>> samples_of;  // by micro-batch
  int64_t mine = 0;
  for (int64_t i = 0; i < data.micro_batches; ++i) {
    samples_of.push_back(sampler_.samples(position, i, world_.rank() / sharing_));
    for (const int64_t sample : samples_of.back()) mine += data_.targets_in(sample);
  }
  // They are summed over the ranks, so it does not matter which has how many of them.
  mine = mine / sharing_ + (world_.rank() % sharing_ < mine % sharing_);
  const StepOptions options{.tokens = per_token ? std::optional(mine) : std::nullopt};
  const auto pass = [&](const Batch& batch, at::Tensor& total) {
    const auto loss = call(model_, batch);
    total += loss.detach();
    optimizer_.scale(loss * weight).backward();
  };
  // Samples of all ranks are counted: ranks replay together, or none does.
  const bool full = outcome.samples == data.batch * data.micro_batches * world_.size() / sharing_;
  if (graph_ && full) {
    before_update();
    std::vector<Batch> batches;
    for (const auto& samples : samples_of) batches.push_back(part_of(samples));
    if (per_token) optimizer_.set_tokens(mine);  // for the replay
    outcome.loss = graph_->run(batches, [&](const std::vector<Batch>& given, at::Tensor& sum) {
      for (const auto& batch : given) pass(batch, sum);
      optimizer_.step(options);
    });
  } else {
    outcome.loss = run_eagerly(samples_of, pass);
    before_update();
    try {
      optimizer_.step(options);
    } catch (const NotFiniteError& error) {
      if (configuration_.train.on_bad_step == "stop") throw;
      outcome.findings = error.findings();
    }
  }
  return outcome;
}

}  // namespace sherd
