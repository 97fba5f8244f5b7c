// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "sherd/comm/device_memory.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "sherd/train/train.h"
#include "train/budget.h"
#include "train/checkpoints.h"
#include "train/event_file.h"
#include "train/graphed_steps.h"
#include "train/memory_probe.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/possible_speed.h"
#include "train/progress.h"
#include "train/rehearsal.h"
#include "train/report.h"
#include "train/results.h"
#include "train/run_costs.h"
#include "train/sampler.h"
#include "train/schedule.h"
#include "train/setup.h"
#include "train/stop_signals.h"
#include "train/timing.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

class Trainer {
 public:
  explicit Trainer(const Configuration& configuration);
  void run();

 private:
  StepMetrics step(int64_t number, Checkpoints& checkpoints);
  void plan_memory();
  void compare_memory(StepMetrics& metrics);
  double validate();
  int64_t targets_in_step() const;
  double sum(double mine) const;
  std::vector<int64_t> most(const std::vector<int64_t>& mine) const;
  void check_same_everywhere() const;
  bool first() const { return world_.rank() == 0; }
  void say(const std::string& line);

  StopSignals signals_;  // from the start: large models take a while to set up
  World world_;
  MemoryProbe probe_;
  Configuration configuration_;
  std::optional<Results> results_;  // on the first rank
  Mesh mesh_;
  Dataset data_;
  std::optional<Dataset> validation_;
  std::shared_ptr<LanguageModel> model_;
  Sampler sampler_;
  AdamW optimizer_;
  Progress progress_;
  int64_t position_ = 0;  // samples that were trained on
  Ledger ledger_;
  std::optional<GraphedSteps> graph_;
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

/// Decides what a budget leaves to be decided; the same on all ranks.
Configuration chosen(const Configuration& configuration, const World& world) {
  if (configuration.memory.budget.empty()) return configuration;
  PlanOptions options;
  options.device = world.device().is_cuda() ? "cuda" : "cpu";
  if (const auto memory = device_memory(world.device())) {
    // What this process has taken already is in the plan, too. All ranks have the least.
    const auto mine = at::tensor({memory->total - memory->used + memory->outside()}, at::kLong)
                          .to(world.device());
    auto all = at::empty({world.size()}, mine.options());
    world.communicator().all_gather(all, mine).synchronize();
    options.free_memory = all.amin().item<int64_t>();
  }
  if (configuration.device.network) options.network = read_network(*configuration.device.network);
  return within_budget(configuration, world.size(), options);
}

Trainer::Trainer(const Configuration& configuration)
    : world_(world_of(configuration)),
      probe_(world_.device()),
      configuration_(chosen(with_resolved_model(configuration), world_)),
      results_(first() ? std::optional<Results>(configuration_) : std::nullopt),
      mesh_(mesh_of(configuration.shard, world_)),
      data_(training_data_of(configuration_)),
      validation_(validation_data_of(configuration_)),
      model_(model_of(configuration_, mesh_)),
      sampler_(sampling_of(configuration_, data_, world_.size())),
      optimizer_(*model_, optimizer_of(configuration_, *model_)),
      progress_(configuration.train.steps, terminal_columns()) {
  check_same_everywhere();
  plan_memory();
  if (configuration_.train.graph) {
    TORCH_CHECK_VALUE(
        !data_.has_images(),
        "[train] train.graph = true: a model of kind \"vlm\" runs its tower for some batches only, "
        "and a graph repeats one step; set train.graph = false");
    graph_.emplace(*model_);
  }
}

/// What the run will take, by name, before the first step.
void Trainer::plan_memory() {
  probe_.note_communicators(configuration_.memory.symmetric ? model_bytes(*model_).arena : 0);
  const auto target = world_.device().type();
  ledger_ = planned_ledger(
      rehearse_on_meta(configuration_, world_.size(), target, world_.rank()), target,
      world_.size());
  probe_.correct(ledger_);
  restart_memory_peaks(world_.device());
  if (!configuration_.memory.budget.empty()) {
    say("memory.budget = " + configuration_.memory.budget + ": train.recompute = \"" +
        configuration_.train.recompute + "\", " +
        std::to_string(configuration_.train.recompute_layers) +
        " layers (0: all), shard.prefetch = " + std::to_string(configuration_.shard.prefetch) +
        ", shard.keep_gathered = " + std::to_string(configuration_.shard.keep_gathered));
  }
  if (const auto text = symmetric_report(*model_); !text.empty()) say("symmetric memory: " + text);
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (world_.device().is_cuda() && connections && std::string(connections) == "1") {
    say("CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one queue: nothing will overlap; "
        "unset "
        "it");
  }
}

/// On a GPU all that the device has taken is compared with all that was planned; else what Sherd
/// allocates.
void Trainer::compare_memory(StepMetrics& metrics) {
  probe_.measure(ledger_, *model_, optimizer_);
  int64_t planned = 0;
  int64_t found = 0;
  for (const auto& entry : ledger_.entries) {
    if (!entry.measured) continue;
    planned += entry.planned;
    found += *entry.measured;
  }
  const auto largest = most({planned, found});
  metrics.planned_bytes = largest[0];
  metrics.peak_bytes = largest[1];
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
  StepMetrics metrics;
  metrics.step = number;
  metrics.lr = rate_of(configuration_.optim, train.steps, number);
  optimizer_.set_rate(metrics.lr);
  std::vector<std::vector<int64_t>> samples_of;  // by micro-batch
  int64_t mine = 0;
  for (int64_t i = 0; i < data.micro_batches; ++i) {
    samples_of.push_back(sampler_.samples(position_, i, world_.rank()));
    for (const int64_t sample : samples_of.back()) mine += data_.targets_in(sample);
  }
  const StepOptions options{.tokens = per_token ? std::optional(mine) : std::nullopt};
  const auto pass = [&](const Batch& batch, at::Tensor& total) {
    const auto loss = call(*model_, batch);
    total += loss.detach();
    optimizer_.scale(loss * weight).backward();
  };
  // Of all ranks: they replay together, or none does.
  const bool full =
      sampler_.samples_from(position_) == data.batch * data.micro_batches * world_.size();
  at::Tensor total;
  if (graph_ && full) {
    checkpoints.before_update();
    std::vector<Batch> batches;
    for (const auto& samples : samples_of) batches.push_back(data_.load(samples, world_.device()));
    if (per_token) optimizer_.set_tokens(mine);  // for the replay
    total = graph_->run(batches, [&](const std::vector<Batch>& given, at::Tensor& sum) {
      for (const auto& batch : given) pass(batch, sum);
      optimizer_.step(options);
    });
  } else {
    total = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world_.device()));
    for (const auto& samples : samples_of) {
      if (samples.empty()) {
        idle_pass(*model_);
      } else {
        pass(data_.load(samples, world_.device()), total);
      }
    }
    checkpoints.before_update();
    optimizer_.step(options);
  }
  metrics.loss = sum(total.item<double>()) / static_cast<double>(targets);
  metrics.grad_norm = optimizer_.gradient_norm();
  metrics.step_seconds = seconds_since(begin);
  const int64_t samples = sampler_.samples_from(position_);
  metrics.tokens_per_second = static_cast<double>(samples * data.seq) / metrics.step_seconds;
  position_ += samples;
  metrics.tflops = model_->flops_per_token(data.seq) * metrics.tokens_per_second /
                   static_cast<double>(world_.size()) / 1e12;
  compare_memory(metrics);
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
    auto result = [&] {
      try {
        return step(number, checkpoints);
      } catch (const c10::OutOfMemoryError& error) {
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "[train] out of memory in step ", number, ": ",
            advice_on_memory(configuration_, world_.size(), world_.device().type()), ". (",
            error.what_without_backtrace(), ")");
      }
    }();
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
    results_->write("report.html", report_html(configuration_, world_.size(), steps, ledger_));
    say("report: " + results_->path("report.html"));
  }
  TORCH_CHECK(saved, "[train] the last checkpoint could not be saved");
}

}  // namespace

void train(const Configuration& configuration) {
  reserve_little();
  Trainer(configuration).run();
}

}  // namespace sherd
