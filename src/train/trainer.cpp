// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "configuration/optimizer.h"
#include "configuration/setup.h"
#include "data/across_ranks.h"
#include "data/sampler.h"
#include "device/device_memory.h"
#include "device/peak_speed.h"
#include "device/timing.h"
#include "forecast/graphed_steps.h"
#include "forecast/memory_probe.h"
#include "forecast/rehearsal.h"
#include "forecast/run_costs.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "train/checkpoints.h"
#include "train/earlier_run.h"
#include "train/metrics.h"
#include "train/not_finite.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/results.h"
#include "train/run_inputs.h"
#include "train/schedule.h"
#include "train/step_files.h"
#include "train/step_log.h"
#include "train/stop_signals.h"
#include "train/train.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

class Trainer {
 public:
  explicit Trainer(const Configuration& configuration);
  void run();

 private:
  /// Where a step that is not finite has left the run.
  struct NotFinite {
    int64_t step = 0;
    std::vector<Finding> findings;
    Checkpoints::Place before;  ///< the state that the model is in
  };
  void train_from(const Checkpoints::Place& start, Checkpoints& checkpoints);
  void step(int64_t number, Checkpoints& checkpoints);
  void check_finite(const std::vector<StepMetrics>& steps);
  void read_steps();
  void validate_missed(int64_t step);
  void finish(Checkpoints& checkpoints);
  void plan_memory();
  void compare_memory();
  double validate();
  bool validates(int64_t step) const;
  bool logs(int64_t step) const;
  int64_t targets_in_step() const;
  double sum(double mine) const;
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
  StepLog log_;
  SharedWishes wishes_;
  std::optional<StepFiles> files_;
  int64_t position_ = 0;         // samples that were trained on
  int64_t position_before_ = 0;  // the last step
  bool scales_loss_ = false;
  int64_t start_ = 0;       // the step that the run goes on from
  int64_t steps_made_ = 0;  // since then
  int64_t planned_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  bool saved_ = true;  // the last checkpoint, if there was one
  std::optional<NotFinite> not_finite_;
  Ledger ledger_;
  std::optional<GraphedSteps> graph_;
};

Trainer::Trainer(const Configuration& configuration)
    : world_(world_of(configuration)),
      probe_(world_.device()),
      configuration_(decided(configuration, world_)),
      results_(first() ? std::optional<Results>(configuration_) : std::nullopt),
      mesh_(mesh_of(configuration.shard, world_)),
      data_(checked_training_data(configuration_, world_)),
      validation_(checked_validation_data(configuration_, world_)),
      model_(model_of(configuration_, mesh_)),
      sampler_(sampling_of(configuration_, data_, world_.size())),
      optimizer_(*model_, optimizer_of(configuration_, *model_)),
      progress_(configuration.train.steps, terminal_columns()),
      log_(world_),
      wishes_(world_) {
  if (first() && !results_->lock().missing().empty()) say(results_->lock().missing());
  check_same_everywhere();
  scales_loss_ = optimizer_of(configuration_, *model_).scaling.has_value();
  if (const auto& word = configuration_.train.watch; word != "on") {
    watch(*model_, {.enabled = word != "off", .before_reduction = word == "ranks"});
  }
  plan_memory();
  if (configuration_.train.graph) {
    TORCH_CHECK_VALUE(
        !data_.has_images(),
        "[train] train.graph = true: a model of kind \"vlm\" runs its vision tower for some "
        "batches only, and a graph always repeats the same step; set train.graph = false");
    graph_.emplace(*model_);
  }
}

/// What the run will take, by name, before the first step.
void Trainer::plan_memory() {
  probe_.note_communicators(configuration_.memory.symmetric ? allocated_bytes(*model_).arena : 0);
  const auto target = world_.device().type();
  ledger_ = planned_ledger(
      dry_run(configuration_, world_.size(), target, world_.rank()), target, world_.size());
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
    say("CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one queue, so nothing will overlap; "
        "unset it");
  }
}

/// On a GPU all that the device has taken is compared with all that was planned; else what Sherd
/// allocates.
void Trainer::compare_memory() {
  probe_.measure(ledger_, *model_, optimizer_);
  int64_t planned = 0;
  int64_t found = 0;
  for (const auto& entry : ledger_.entries) {
    if (!entry.measured) continue;
    planned += entry.planned;
    found += *entry.measured;
  }
  const auto largest = largest_of_ranks(world_, {planned, found});
  planned_bytes_ = largest[0];
  peak_bytes_ = largest[1];
}

/// Ranks that train differently would wait for each other for ever.
void Trainer::check_same_everywhere() const {
  const auto text = to_text(configuration_);
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(text) >> 1);
  const auto both = largest_of_ranks(world_, {hash, -hash});
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

void Trainer::step(int64_t number, Checkpoints& checkpoints) {
  log_.begin();
  const auto& [data, train] = std::tie(configuration_.data, configuration_.train);
  const bool per_token = train.loss == "per_token";
  const int64_t targets = std::max<int64_t>(1, targets_in_step());
  // Sherd takes the mean over the ranks; all together it is the mean over the step's targets.
  const double weight =
      per_token ? 1 : static_cast<double>(world_.size()) / static_cast<double>(targets);
  StepMetrics metrics;
  metrics.step = number;
  metrics.lr = lr_of(configuration_.optim, train.steps, number);
  optimizer_.set_lr(metrics.lr);
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
  const int64_t samples = sampler_.samples_from(position_);
  log_.add(metrics, total, optimizer_.gradient_norm_on_device(), targets, samples * data.seq);
  position_before_ = position_;
  position_ += samples;
  ++steps_made_;
}

/// Reads what the device has computed since the last time, and writes it down. Collective; waits.
void Trainer::read_steps() {
  auto steps = log_.take();
  if (steps.empty()) return;
  compare_memory();
  for (auto& metrics : steps) {
    metrics.tflops = model_->flops_per_token(configuration_.data.seq) * metrics.tokens_per_second /
                     static_cast<double>(world_.size()) / 1e12;
    metrics.planned_bytes = planned_bytes_;
    metrics.peak_bytes = peak_bytes_;
    files_->add(metrics);
  }
  check_finite(steps);
}

/// On a GPU the watch speaks some steps later, or not at all where it is off: the norm says it,
/// too.
void Trainer::check_finite(const std::vector<StepMetrics>& steps) {
  if (scales_loss_) return;  // expected now and then
  const auto bad = std::find_if(steps.begin(), steps.end(), [](const StepMetrics& one) {
    return !std::isfinite(one.grad_norm);
  });
  if (bad == steps.end() || not_finite_) return;
  // The step itself has changed nothing; those after it were made as ever.
  const int64_t last = steps.back().step;
  const auto before = bad->step == last ? Checkpoints::Place{last - 1, position_before_}
                                        : Checkpoints::Place{last, position_};
  not_finite_ = {bad->step, findings(*model_), before};
}

double Trainer::validate() {
  const c10::NoGradGuard no_grad;
  const Sampler sampler(
      {.samples = validation_->samples(),
       .batch = configuration_.data.batch,
       .ranks = world_.size()});
  auto loss = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world_.device()));
  int64_t targets = 0;
  for (int64_t position = 0; position < validation_->samples();
       position += sampler.samples_from(position)) {
    const auto samples = sampler.samples(position, 0, world_.rank());
    if (samples.empty()) {
      idle_pass(*model_);
      continue;
    }
    for (const int64_t sample : samples) targets += validation_->targets_in(sample);
    loss += call(*model_, validation_->load(samples, world_.device()));
  }
  return sum(loss.item<double>()) / std::max(1.0, sum(static_cast<double>(targets)));
}

bool Trainer::validates(int64_t step) const {
  const auto& train = configuration_.train;
  const bool wanted = train.validate_every > 0 && step % train.validate_every == 0;
  return validation_ && step > 0 && (wanted || step == train.steps);
}

bool Trainer::logs(int64_t step) const {
  const auto& train = configuration_.train;
  if (step == train.steps) return true;
  if (train.log_every > 0) return step % train.log_every == 0;
  // On a CPU there is nothing to wait for.
  return !world_.device().is_cuda() || step - start_ <= 10 || step % 10 == 0;
}

/// A run that was killed while it validated goes on after the step.
void Trainer::validate_missed(int64_t step) {
  if (!validates(step)) return;
  const auto& steps = files_->steps();
  const bool missed =
      first() && !steps.empty() && steps.back().step == step && !steps.back().val_loss.has_value();
  if (numbers_of_first_rank(world_, {missed})[0] == 0) return;
  files_->add_validation(validate());
}

void Trainer::train_from(const Checkpoints::Place& start, Checkpoints& checkpoints) {
  const auto& train = configuration_.train;
  const double possible =
      peak_matmul_tflops(world_.device(), compute_dtype_of(configuration_.precision));
  const auto begin = Clock::now();
  int64_t acted = start.step;  // when a checkpoint was last begun or carried on
  for (int64_t number = start.step + 1; number <= train.steps; ++number) {
    step(number, checkpoints);
    const bool last = number == train.steps;
    // One rank that was asked is enough, and all stop after the same step.
    const auto wishes = wishes_.exchange({signals_.asked() != 0, checkpoints.busy()});
    const bool stops = wishes.stop != 0 && !last;
    const bool saves = checkpoints.due(number, stops || last);
    const bool shows = logs(number) || stops;
    if (shows || saves || validates(number) || log_.full()) read_steps();
    if (not_finite_) return;
    if (checkpoints.under_way() && wishes.busy == 0 && number - acted > wishes_.delay()) {
      saved_ = checkpoints.advance();
      acted = number;
    }
    // Before the validation: whatever happens there, this much is on the disk.
    if (saves) {
      saved_ = checkpoints.save({number, position_});
      acted = number;
      if (last) saved_ = checkpoints.finish() && saved_;
    }
    if (validates(number)) files_->add_validation(validate());
    if (shows && first()) {
      const double each = seconds_since(begin) / static_cast<double>(number - start.step);
      const double left = each * static_cast<double>(train.steps - number);
      progress_.show(number, line_of(files_->steps().back(), train.steps, possible, left));
    }
    if (!stops) continue;
    say("stopped by a signal after step " + std::to_string(number));
    return;
  }
}

/// Whatever ended the training: what is known is written down.
void Trainer::finish(Checkpoints& checkpoints) {
  if (not_finite_) {
    read_steps();
    saved_ = checkpoints.finish() && saved_;
    const auto& before = not_finite_->before;
    if (before.step > start_ && !checkpoints.has(before.step)) saved_ = checkpoints.save(before);
  }
  saved_ = checkpoints.finish() && saved_;
  if (first()) {
    results_->write(
        "report.html", report_html(configuration_, world_.size(), files_->steps(), ledger_));
    say("report: " + results_->path("report.html"));
  }
  if (not_finite_) {
    std::vector<std::string> names;
    for (const auto& item : model_->named_parameters()) names.push_back(item.key());
    const bool there = saved_ && checkpoints.has(not_finite_->before.step);
    TORCH_CHECK(
        false,
        not_finite_text(
            configuration_, not_finite_->step, in_order_of_backward(not_finite_->findings, names),
            there ? checkpoints.newest() : ""));
  }
  TORCH_CHECK(saved_, "[train] the last checkpoint could not be saved");
}

void Trainer::run() {
  Checkpoints checkpoints(
      configuration_, world_, *model_, optimizer_, first() ? fingerprint_of(data_.tokens()) : 0,
      [this](const std::string& line) { say(line); });
  const auto start = checkpoints.resume();
  position_ = start.samples;
  start_ = start.step;
  files_.emplace(results_ ? &*results_ : nullptr, configuration_.train, start.step);
  if (!files_->warning().empty()) say(files_->warning());
  validate_missed(start.step);
  try {
    train_from(start, checkpoints);
  } catch (const NotFiniteError& error) {
    // Thrown after the step's passes, before `position_` moved on; its findings may be of a step
    // before, which changed nothing either.
    const int64_t number = start.step + steps_made_ + 1;
    const auto& found = error.findings();
    const int64_t step = found.empty() ? number : start.step + found.front().step;
    not_finite_ = {step, found, {number - 1, position_}};
  } catch (const c10::OutOfMemoryError& error) {
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "[train] out of memory in step ", start.step + steps_made_ + 1,
        ": ", advice_on_memory(configuration_, world_.size(), world_.device().type()), ". (",
        error.what_without_backtrace(), ")");
  }
  finish(checkpoints);
}

}  // namespace

void train(const Configuration& configuration) {
  use_expandable_segments();
  Trainer(configuration).run();
}

}  // namespace sherd
