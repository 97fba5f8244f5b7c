// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "sherd/optim/adamw.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "sherd/train/train.h"
#include "train/checkpoints.h"
#include "train/event_file.h"
#include "train/metrics.h"
#include "train/possible_speed.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/results.h"
#include "train/sampler.h"
#include "train/schedule.h"
#include "train/setup.h"
#include "train/stop_signals.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Trainer {
 public:
  explicit Trainer(const Configuration& configuration);
  void run();

 private:
  StepMetrics step(int64_t number, Checkpoints& checkpoints);
  double validate();
  int64_t targets_in_step() const;
  double sum(double mine) const;
  std::vector<int64_t> most(const std::vector<int64_t>& mine) const;
  void check_same_everywhere() const;
  bool first() const { return world_.rank() == 0; }
  void say(const std::string& line);

  StopSignals signals_;  // from the start: large models take a while to set up
  Configuration configuration_;
  World world_;
  std::optional<Results> results_;  // on the first rank
  Mesh mesh_;
  Dataset data_;
  std::optional<Dataset> validation_;
  std::shared_ptr<LanguageModel> model_;
  Sampler sampler_;
  AdamW optimizer_;
  Progress progress_;
  int64_t position_ = 0;  // samples that were trained on
  int64_t planned_bytes_ = 0;
};

Configuration with_resolved_model(Configuration configuration) {
  configuration.model = resolved(configuration.model);
  return configuration;
}

Sampler::Options sampling_of(
    const Configuration& configuration, const Dataset& dataset, int64_t ranks) {
  const auto& data = configuration.data;
  return {
      .samples = dataset.samples(),
      .batch = data.batch,
      .micro_batches = data.micro_batches,
      .ranks = ranks,
      .shuffle = data.shuffle,
      .seed = static_cast<uint64_t>(configuration.train.seed)};
}

AdamWOptions optimizer_of(const Configuration& configuration, const LanguageModel& model) {
  const auto& optim = configuration.optim;
  AdamWOptions options;
  options.rate = optim.lr;
  options.beta1 = optim.betas[0];
  options.beta2 = optim.betas[1];
  options.epsilon = optim.eps;
  options.decay = optim.weight_decay;
  options.max_norm = optim.clip.value_or(0);
  for (const auto& item : model.named_parameters()) {
    if (optim.decay == "matrices" && item.value().dim() < 2)
      options.rules.push_back({.match = item.key(), .decay = 0});
  }
  const auto& precision = configuration.precision;
  if (precision.recipe == "fp16" || precision.compute == "fp16") options.scaling = LossScaling{};
  return options;
}

Trainer::Trainer(const Configuration& configuration)
    : configuration_(with_resolved_model(configuration)),
      world_(world_of(configuration.device)),
      results_(first() ? std::optional<Results>(configuration_) : std::nullopt),
      mesh_(mesh_of(configuration.shard, world_)),
      data_(training_data_of(configuration_)),
      validation_(validation_data_of(configuration_)),
      model_(model_of(configuration_, mesh_)),
      sampler_(sampling_of(configuration_, data_, world_.size())),
      optimizer_(*model_, optimizer_of(configuration_, *model_)),
      progress_(configuration.train.steps, terminal_columns()) {
  check_same_everywhere();
  planned_bytes_ = most({program(*model_).bytes().peak() + optimizer_.allocated_bytes()})[0];
}

/// Ranks that train differently would wait for each other for ever.
void Trainer::check_same_everywhere() const {
  const auto text = to_text(configuration_);
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(text) >> 1);
  const auto both = most({hash, -hash});
  TORCH_CHECK_VALUE(
      both[0] == -both[1],
      "[train] not all ranks have the same configuration: give each the same "
      "file and the same --set");
}

void Trainer::say(const std::string& line) {
  if (first()) progress_.say(line);
}

double Trainer::sum(double mine) const {
  auto value = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world_.device()));
  value.fill_(mine);
  world_.communicator().all_reduce(value, Reduction::sum()).synchronize();
  // An emulated sum is this rank's part; the others are taken to be like it.
  const double others =
      world_.launcher() == Launcher::emulated ? static_cast<double>(world_.size()) : 1;
  return value.item<double>() * others;
}

/// Of each number, the largest of all ranks.
std::vector<int64_t> Trainer::most(const std::vector<int64_t>& mine) const {
  const auto value = at::tensor(mine, at::kLong).to(world_.device());
  auto all = at::empty({world_.size(), std::ssize(mine)}, value.options());
  world_.communicator().all_gather(all.view({-1}), value).synchronize();
  const auto largest = all.amax(0).cpu();
  const auto* numbers = largest.const_data_ptr<int64_t>();
  return {numbers, numbers + mine.size()};
}

/// Of all ranks.
int64_t Trainer::targets_in_step() const {
  if (!data_.has_images()) return sampler_.samples_from(position_) * configuration_.data.seq;
  int64_t targets = 0;
  for (int64_t i = 0; i < configuration_.data.micro_batches; ++i) {
    for (int64_t rank = 0; rank < world_.size(); ++rank) {
      for (const int64_t sample : sampler_.samples(position_, i, rank)) {
        targets += data_.targets_in(sample);
      }
    }
  }
  return targets;
}

StepMetrics Trainer::step(int64_t number, Checkpoints& checkpoints) {
  const auto begin = Clock::now();
  const auto& [data, train] = std::tie(configuration_.data, configuration_.train);
  const bool per_token = train.loss == "per_token";
  const int64_t targets = std::max<int64_t>(1, targets_in_step());
  // Sherd takes the mean over the ranks; all together it is the mean over the step's targets.
  const double weight =
      per_token ? 1 : static_cast<double>(world_.size()) / static_cast<double>(targets);
  auto total = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world_.device()));
  int64_t mine = 0;
  for (int64_t i = 0; i < data.micro_batches; ++i) {
    const auto samples = sampler_.samples(position_, i, world_.rank());
    if (samples.empty()) {
      idle_pass(*model_);
      continue;
    }
    const auto loss = call(*model_, data_.load(samples, world_.device()));
    total += loss.detach();
    for (const int64_t sample : samples) mine += data_.targets_in(sample);
    optimizer_.scale(loss * weight).backward();
  }
  StepMetrics metrics;
  metrics.step = number;
  metrics.lr = rate_of(configuration_.optim, train.steps, number);
  checkpoints.before_update();
  optimizer_.set_rate(metrics.lr);
  optimizer_.step({.tokens = per_token ? std::optional(mine) : std::nullopt});
  metrics.loss = sum(total.item<double>()) / static_cast<double>(targets);
  metrics.grad_norm = optimizer_.gradient_norm();
  metrics.step_seconds = seconds_since(begin);
  const int64_t samples = sampler_.samples_from(position_);
  metrics.tokens_per_second = static_cast<double>(samples * data.seq) / metrics.step_seconds;
  position_ += samples;
  metrics.tflops = model_->flops_per_token(data.seq) * metrics.tokens_per_second /
                   static_cast<double>(world_.size()) / 1e12;
  metrics.planned_bytes = planned_bytes_;
  metrics.peak_bytes = most({allocated_bytes(*model_) + optimizer_.allocated_bytes()})[0];
  return metrics;
}

double Trainer::validate() {
  const c10::NoGradGuard no_grad;
  const Sampler sampler(
      {.samples = validation_->samples(),
       .batch = configuration_.data.batch,
       .ranks = world_.size()});
  double loss = 0;
  int64_t targets = 0;
  for (int64_t position = 0; position < validation_->samples();
       position += sampler.samples_from(position)) {
    const auto samples = sampler.samples(position, 0, world_.rank());
    if (samples.empty()) {
      idle_pass(*model_);
      continue;
    }
    for (const int64_t sample : samples) targets += validation_->targets_in(sample);
    loss += call(*model_, validation_->load(samples, world_.device())).item<double>();
  }
  return sum(loss) / std::max(1.0, sum(static_cast<double>(targets)));
}

void Trainer::run() {
  const auto& train = configuration_.train;
  Checkpoints checkpoints(
      configuration_, world_, *model_, optimizer_, [this](const std::string& line) { say(line); });
  const auto start = checkpoints.resume();
  position_ = start.samples;
  std::optional<MetricsFile> metrics;
  std::optional<EventFile> events;
  std::vector<StepMetrics> steps;
  if (first()) {
    results_->write_configuration();
    metrics.emplace(results_->path("metrics.jsonl"), start.step);
    steps = metrics->kept();
    if (train.tensorboard) events.emplace(train.out);
  }
  const double possible =
      possible_tflops(world_.device(), compute_dtype_of(configuration_.precision));
  const auto begin = Clock::now();
  bool saved = true;
  for (int64_t number = start.step + 1; number <= train.steps; ++number) {
    auto result = step(number, checkpoints);
    const bool last = number == train.steps;
    if (validation_ && (last || (train.validate_every > 0 && number % train.validate_every == 0))) {
      result.val_loss = validate();
    }
    const double each = seconds_since(begin) / static_cast<double>(number - start.step);
    const double left = each * static_cast<double>(train.steps - number);
    if (first()) progress_.show(number, line_of(result, train.steps, possible, left));
    if (metrics) metrics->add(result);
    if (events) events->add(result);
    steps.push_back(result);
    // One rank that was asked is enough, and all stop after the same step.
    const auto asked = most({signals_.asked(), checkpoints.busy()});
    const bool stops = asked[0] != 0 && !last;
    if (checkpoints.under_way() && asked[1] == 0) saved = checkpoints.advance();
    if (checkpoints.due(number, stops || last)) {
      saved = checkpoints.save({number, position_});
    }
    if (!stops) continue;
    say("stopped by a signal after step " + std::to_string(number));
    break;
  }
  saved = checkpoints.finish() && saved;
  if (first()) {
    results_->write("report.html", report_html(configuration_, world_.size(), steps));
    say("report: " + results_->path("report.html"));
  }
  TORCH_CHECK(saved, "[train] the last checkpoint could not be saved");
}

}  // namespace

void train(const Configuration& configuration) {
  Trainer(configuration).run();
}

}  // namespace sherd
