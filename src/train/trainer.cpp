// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <utility>

#include "comm/flight/flight_ring.h"
#include "configuration/axes.h"
#include "configuration/optimizer.h"
#include "configuration/setup.h"
#include "data/across_ranks.h"
#include "device/device_memory.h"
#include "device/device_name.h"
#include "device/peak_speed.h"
#include "device/timing.h"
#include "files/format_text.h"
#include "forecast/memory_probe.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "train/bad_steps.h"
#include "train/banner.h"
#include "train/checkpoints.h"
#include "train/earlier_run.h"
#include "train/flight_recorder.h"
#include "train/metrics.h"
#include "train/not_finite.h"
#include "train/progress.h"
#include "train/replica_checks.h"
#include "train/results.h"
#include "train/run_inputs.h"
#include "train/run_memory.h"
#include "train/run_reporter.h"
#include "train/schedule.h"
#include "train/step_files.h"
#include "train/step_line.h"
#include "train/step_log.h"
#include "train/stop_signals.h"
#include "train/stragglers.h"
#include "train/train.h"
#include "train/training_samples.h"
#include "train/training_step.h"
#include "train/validation.h"

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
    std::string explosion{};    ///< why it is bad though it is finite
  };
  void train_from(const Checkpoints::Place& start, Checkpoints& checkpoints);
  void step(int64_t number, Checkpoints& checkpoints);
  SharedWishes::Wishes exchange_wishes(int64_t number, bool busy);
  void check_finite(const std::vector<StepMetrics>& steps);
  void pass_over_bad(const std::vector<StepMetrics>& steps);
  int64_t rewind(Checkpoints& checkpoints);
  void report_bad(int64_t step, const std::string& decision);
  std::vector<Finding> ordered(const std::vector<Finding>& findings) const;
  /// The state after the last step that was made, if `step` is its number.
  Checkpoints::Place place_at(int64_t step) const { return {step, position_, bad_.numbers()}; }
  void read_steps();
  void validate_missed(int64_t step, Checkpoints& checkpoints);
  void finish(Checkpoints& checkpoints);
  void note_validation(int64_t step, Checkpoints& checkpoints);
  void show(const StepMetrics& metrics, double possible, double left);
  bool validates(int64_t step) const;
  bool logs(int64_t step) const;
  bool first() const { return world_.rank() == 0; }
  void say(const std::string& line);

  StopSignals signals_;  // from the start: large models take a while to set up
  World world_;
  RunMemory memory_;
  RunSizes sizes_;
  Configuration configuration_;
  std::optional<Results> results_;  // on the first rank
  Mesh mesh_;
  Dataset data_;
  std::optional<Dataset> validation_;
  std::shared_ptr<LanguageModel> model_;
  AdamW optimizer_;
  Progress progress_;
  StepLog log_;
  SharedWishes wishes_;
  Stragglers stragglers_;
  ReplicaChecks replicas_;
  std::optional<StepFiles> files_;
  std::optional<RunReporter> reporter_;  // on the first rank
  double lowest_ = INFINITY;             // validation loss
  int64_t position_ = 0;                 // samples that were trained on
  int64_t position_before_ = 0;          // the last step
  bool scales_loss_ = false;
  int64_t start_ = 0;       // the step that the run goes on from
  int64_t steps_made_ = 0;  // since then
  bool saved_ = true;       // the last checkpoint, if there was one
  std::optional<NotFinite> not_finite_;
  /// The steps since their norms were last read.
  struct UnreadStep {
    BadSteps::Samples samples;
    std::vector<Finding> findings;
    double norm = 0;
  };
  std::map<int64_t, UnreadStep> unread_;
  BadSteps bad_;
  int64_t rewinds_from_ = 0;  // the bad step because of which the run is to go back; 0: none
  std::optional<TrainingStep> training_;
  std::optional<TrainingSamples> samples_;
};

Trainer::Trainer(const Configuration& configuration)
    : world_(world_of(configuration)),
      memory_(world_),
      configuration_(decided(configuration, world_)),
      results_(first() ? std::optional<Results>(configuration_) : std::nullopt),
      mesh_(mesh_of(configuration, world_)),
      data_(checked_training_data(configuration_, world_)),
      validation_(checked_validation_data(configuration_, world_)),
      model_(model_of(configuration_, mesh_)),
      optimizer_(*model_, optimizer_of(configuration_, *model_)),
      progress_(configuration.train.steps, terminal_columns, std::cout),
      log_(world_),
      wishes_(world_),
      stragglers_(world_),
      replicas_(configuration_.train, stragglers_.hosts()),
      bad_(configuration_.train) {
  if (first() && !results_->lock().missing().empty()) say(results_->lock().missing());
  check_same_everywhere(configuration_, world_);
  scales_loss_ = optimizer_of(configuration_, *model_).scaling.has_value();
  TORCH_CHECK_VALUE(
      bad_.stop() || !scales_loss_, "[train] train.on_bad_step = \"",
      configuration_.train.on_bad_step,
      "\": loss scaling skips steps that are not finite itself, and lowers the scale; remove it");
  // On a GPU the watch would end a later step with its error.
  const bool watches = bad_.stop() || world_.device().is_cpu();
  if (const auto& word = configuration_.train.watch; word != "on" || !watches) {
    watch(*model_, {.enabled = watches && word != "off", .before_reduction = word == "ranks"});
  }
  memory_.plan(configuration_, *model_);
  sizes_ = sizes_of(configuration_, world_, data_, *model_, memory_.ledger().planned());
  for (const auto& line : banner(configuration_, world_, sizes_)) say(line);
  for (const auto& line : notes_on_memory(configuration_, *model_, world_.device())) say(line);
  training_.emplace(configuration_, world_, data_, *model_, optimizer_);
  if (configuration_.train.sample_every > 0) samples_.emplace(configuration_, world_, *model_);
}

void Trainer::say(const std::string& line) {
  if (first()) progress_.say(line);
}

void Trainer::step(int64_t number, Checkpoints& checkpoints) {
  log_.begin();
  stragglers_.begin_step();
  StepMetrics metrics;
  metrics.step = number;
  metrics.lr =
      lr_of(configuration_.optim, configuration_.train.steps, number, checkpoints.schedule_start());
  optimizer_.set_lr(metrics.lr);
  position_ = bad_.next_position(position_);
  const auto made = training_->run(position_, [&] {
    replicas_.verify(*model_, number);
    checkpoints.before_update();
  });
  metrics.tokens = (position_ + made.samples) * configuration_.data.seq;
  metrics.resumed = start_ > 0 && number == start_ + 1;
  log_.add(
      metrics, made.loss, optimizer_.gradient_norm_on_device(), made.targets,
      made.samples * configuration_.data.seq);
  position_before_ = position_;
  position_ += made.samples;
  unread_[number] = {{position_before_, position_}, made.findings, 0};
  ++steps_made_;
}

/// After a step: tells the other ranks what this one wants, and how fast it was.
SharedWishes::Wishes Trainer::exchange_wishes(int64_t number, bool busy) {
  SharedWishes::Wishes mine{.stop = signals_.asked() != 0, .busy = busy};
  if (!stragglers_.measures()) return wishes_.exchange(mine);
  mine.step.slowest = stragglers_.end_step();
  mine.mean.slowest = stragglers_.mean();
  const auto all = wishes_.exchange(mine);
  log_.add_speeds(all.step);
  if (const auto warning = stragglers_.judge(all.mean, number); !warning.empty()) say(warning);
  return all;
}

/// Reads what the device has computed since the last time, and writes it down. Collective; waits.
void Trainer::read_steps() {
  auto steps = log_.take();
  if (steps.empty()) return;
  memory_.compare(*model_, optimizer_);
  for (auto& metrics : steps) {
    metrics.tflops = model_->flops_per_token(configuration_.data.seq) * metrics.tokens_per_second /
                     static_cast<double>(world_.size()) / 1e12;
    metrics.planned_bytes = memory_.planned_bytes();
    metrics.peak_bytes = memory_.peak_bytes();
    files_->add(metrics);
  }
  check_finite(steps);
}

/// On a GPU the watch speaks some steps later, or not at all where it is off: the norm says it,
/// too.
void Trainer::check_finite(const std::vector<StepMetrics>& steps) {
  if (scales_loss_) return unread_.clear();  // expected now and then
  if (!bad_.stop()) return pass_over_bad(steps);
  unread_.clear();
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

/// With train.on_bad_step: decides what becomes of steps that are bad. The same on all ranks.
void Trainer::pass_over_bad(const std::vector<StepMetrics>& steps) {
  for (const auto& metrics : steps) {
    if (not_finite_ || !bad_.is_bad(metrics.grad_norm)) continue;
    const int64_t step = metrics.step;
    unread_[step].norm = metrics.grad_norm;
    if (bad_.rewind()) {
      rewinds_from_ = step;
      return;  // those after it will be made again
    }
    if (bad_.skip()) {
      report_bad(step, "its update was left out");
    } else {
      report_bad(step, "the run ends: so were too many before it");
      not_finite_ = {step, unread_[step].findings, place_at(steps.back().step)};
    }
  }
  unread_.clear();
}

std::vector<Finding> Trainer::ordered(const std::vector<Finding>& findings) const {
  std::vector<std::string> names;
  for (const auto& item : model_->named_parameters()) names.push_back(item.key());
  return in_order_of_backward(findings, names);
}

/// Says it, and writes it into bad-steps.jsonl, which no resumed run shortens.
void Trainer::report_bad(int64_t step, const std::string& decision) {
  if (!first()) return;
  const auto& [samples, findings, norm] = unread_[step];
  const auto cause = std::isfinite(norm) ? explosion_text(norm) : culprits_text(ordered(findings));
  say(c10::str("step ", step, " is bad: ", cause, "; ", decision));
  std::ofstream(results_->path("bad-steps.jsonl"), std::ios::app)
      << bad_step_json(step, samples, cause, decision) << std::endl;
}

/// Goes back to the newest checkpoint and returns its step. Collective; blocks.
int64_t Trainer::rewind(Checkpoints& checkpoints) {
  const int64_t step = std::exchange(rewinds_from_, 0);
  saved_ = checkpoints.finish() && saved_;
  const auto place = checkpoints.reload();
  if (bad_.leave_out(unread_[step].samples, place.samples)) {
    report_bad(
        step, c10::str("back to step ", place.step, ", and its samples are left out from now on"));
  } else {
    report_bad(step, c10::str("the run ends: it has gone back to step ", place.step, " too often"));
    const auto& [samples, findings, norm] = unread_[step];
    not_finite_ = {step, findings, place};
    if (std::isfinite(norm)) {
      not_finite_->explosion = c10::str(
          explosion_text(norm), "; the run has gone back to step ", place.step, " ",
          BadSteps::kMostRewinds, " times");
    }
  }
  unread_.clear();
  position_ = position_before_ = place.samples;
  steps_made_ = place.step - start_;
  files_.emplace(results_ ? &*results_ : nullptr, configuration_.train, place.step);
  return place.step;
}

void Trainer::note_validation(int64_t step, Checkpoints& checkpoints) {
  const double loss = validation_loss(*model_, *validation_, configuration_, world_);
  const bool best = loss < lowest_;
  if (best) lowest_ = loss;
  files_->add_validation(loss);
  if (reporter_) reporter_->validated(step, loss, best);
  say(format_text("step %lld: validation loss %.4f", static_cast<long long>(step), loss));
  if (best && configuration_.train.keep_best) {
    saved_ = checkpoints.save_best(place_at(step)) && saved_;
  }
}

/// On the first rank.
void Trainer::show(const StepMetrics& metrics, double possible, double left) {
  progress_.show(metrics.step, step_fields(metrics, configuration_.train.steps, possible, left));
  reporter_->logged(metrics);
  const auto failure = reporter_->rewrite(files_->steps(), memory_.ledger());
  if (!failure.empty()) say(failure);
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
void Trainer::validate_missed(int64_t step, Checkpoints& checkpoints) {
  if (!validates(step)) return;
  const auto& steps = files_->steps();
  const bool missed =
      first() && !steps.empty() && steps.back().step == step && !steps.back().val_loss.has_value();
  if (numbers_of_first_rank(world_, {missed})[0] == 0) return;
  note_validation(step, checkpoints);
}

void Trainer::train_from(const Checkpoints::Place& start, Checkpoints& checkpoints) {
  const auto& train = configuration_.train;
  // CPU ranks share their cores: what one could do alone, or all at once, is no measure of a step.
  const double possible =
      world_.device().is_cuda()
          ? peak_matmul_tflops(world_.device(), compute_dtype_of(configuration_.precision))
          : 0;
  const auto begin = Clock::now();
  int64_t acted = start.step;  // when a checkpoint was last begun or carried on
  for (int64_t number = start.step + 1; number <= train.steps; ++number) {
    step(number, checkpoints);
    const bool last = number == train.steps;
    // One rank that was asked is enough, and all stop after the same step.
    const auto wishes = exchange_wishes(number, checkpoints.busy());
    const bool stops = wishes.stop && !last;
    const bool saves = checkpoints.due(number, stops || last);
    const bool shows = logs(number) || stops;
    if (shows || saves || validates(number) || log_.full()) read_steps();
    if (not_finite_) return;
    if (rewinds_from_ > 0) {
      acted = number = rewind(checkpoints);
      if (not_finite_) return;
      continue;
    }
    if (shows && first()) {
      const double each = seconds_since(begin) / static_cast<double>(number - start.step);
      const double left = each * static_cast<double>(train.steps - number);
      show(files_->steps().back(), possible, left);
    }
    if (checkpoints.under_way() && !wishes.busy && number - acted > wishes_.delay()) {
      saved_ = checkpoints.advance();
      acted = number;
    }
    // Before the validation: whatever happens there, this much is on the disk.
    if (saves) {
      saved_ = checkpoints.save(place_at(number));
      acted = number;
      if (last) saved_ = checkpoints.finish() && saved_;
    } else {
      checkpoints.save_snapshot(place_at(number));
    }
    if (validates(number)) note_validation(number, checkpoints);
    if (samples_ && samples_->due(number)) {
      const auto path = first() ? results_->path("samples.jsonl") : "";
      for (const auto& line : samples_->write(number, path)) say(line);
    }
    if (!stops) continue;
    say("stopped by a signal after step " + std::to_string(number));
    return;
  }
}

/// Whatever ended the training: what is known is written down.
void Trainer::finish(Checkpoints& checkpoints) {
  progress_.leave_bar();
  if (not_finite_) {
    read_steps();
    saved_ = checkpoints.finish() && saved_;
    const auto& before = not_finite_->before;
    if (before.step > start_ && !checkpoints.has(before.step)) saved_ = checkpoints.save(before);
  }
  saved_ = checkpoints.finish() && saved_;
  if (first()) {
    const int64_t last = start_ + steps_made_;
    const bool whole = last == configuration_.train.steps;
    reporter_->write(files_->steps(), memory_.ledger());
    reporter_->ended(last, not_finite_ ? "not finite" : whole ? "finished" : "stopped");
    say("report: " + results_->path("report.html"));
  }
  if (not_finite_) {
    const bool there = saved_ && checkpoints.has(not_finite_->before.step);
    throw NotFiniteError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        not_finite_text(
            configuration_, not_finite_->step, ordered(not_finite_->findings),
            there ? checkpoints.newest() : "", not_finite_->explosion),
        not_finite_->findings);
  }
  TORCH_CHECK(saved_, "[train] the last checkpoint could not be saved");
}

void Trainer::run() {
  // Not before: the records of an earlier run stay where they are if this one is refused.
  if (const auto reason = open_flight_recorder(configuration_, world_); !reason.empty())
    TORCH_WARN("[train] ", reason);
  Checkpoints checkpoints(
      configuration_, world_, *model_, optimizer_, first() ? fingerprint_of(data_.tokens()) : 0,
      [this](const std::string& line) { say(line); });
  const auto start = checkpoints.resume();
  position_ = start.samples;
  start_ = start.step;
  begin_flight_recording(start.step);
  files_.emplace(results_ ? &*results_ : nullptr, configuration_.train, start.step);
  if (!files_->warning().empty()) say(files_->warning());
  if (first()) {
    const ReportFacts facts{world_.size(), device_name(world_.device()), sizes_};
    reporter_.emplace(configuration_, *results_, facts);
    reporter_->started(start.step);
    checkpoints.on_saved([this](const std::string& folder) { reporter_->saved(folder); });
  }
  if (configuration_.train.keep_best)
    lowest_ = files_->lowest_validation(world_, checkpoints.best());
  bad_.restore(start.decisions);
  validate_missed(start.step, checkpoints);
  if (bad_.rewind() && !checkpoints.has(start.step)) {
    saved_ = checkpoints.save(place_at(start.step)) && checkpoints.finish();
    TORCH_CHECK(
        saved_, "[train] train.on_bad_step = \"rewind\" needs a checkpoint to go back to, and ",
        checkpoints.newest(), " could not be saved");
  }
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
  const FlightSignal signal;
  Trainer trainer(configuration);
  record_end([&] { trainer.run(); });
}

}  // namespace sherd
