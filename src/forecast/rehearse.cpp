// SPDX-License-Identifier: Apache-2.0
#include "forecast/rehearse.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>

#include "configuration/optimizer.h"
#include "configuration/setup.h"
#include "device/device_memory.h"
#include "device/kernel_profile.h"
#include "device/timing.h"
#include "forecast/device_room.h"
#include "forecast/graphed_steps.h"
#include "forecast/memory_probe.h"
#include "shard/diagnostics/recording.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns the same tokens in every run, so that losses can be compared.
Batch random_batch(const Configuration& configuration, c10::Device device) {
  const auto& [model, data] = std::tie(configuration.model, configuration.data);
  const auto numbers = at::TensorOptions().dtype(at::kLong);
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(configuration.train.seed));
  const auto draw = [&] {
    return at::randint(model.vocab, {data.batch, data.seq}, generator, numbers).to(device);
  };
  Batch batch;
  batch.tokens = draw();
  batch.targets = draw();
  return batch;
}

World world_alone(const Configuration& configuration) {
  auto device = configuration;
  device.device.emulate = 0;
  device.device.network.reset();
  return world_of(device);
}

/// A run's steps in a world that isn't there.
class RehearsalRun {
 public:
  RehearsalRun(
      const World& alone,
      const Configuration& configuration,
      int64_t ranks,
      const RehearseOptions& options)
      : configuration_(configuration),
        alone_(alone),
        probe_(alone_.device()),
        world_(emulated(configuration, ranks, options)),
        model_(model_of(configuration, mesh_of(configuration, world_))),
        optimizer_(*model_, optimizer_of(configuration, *model_)),
        whole_(random_batch(configuration, world_.device())),
        batch_(model_->part_of(whole_)) {
    probe_.note_communicators(configuration.memory.symmetric ? allocated_bytes(*model_).arena : 0);
    restart_memory_peaks(world_.device());
  }

  RehearsedStep timed_step() {
    RehearsedStep result;
    const auto begin = Clock::now();
    const auto loss = step(batch_);
    result.gradient_norm = finish();
    result.seconds = seconds_since(begin);
    result.loss = loss.item<double>();
    return result;
  }

  StepRecord recorded_step() {
    Recording recording(*model_);
    plain_step(batch_);
    finish();
    return recording.finish();
  }

  /// Seconds until a step is enqueued.
  std::optional<double> host_time() {
    if (!world_.device().is_cuda()) return std::nullopt;
    auto batch = batch_;
    if (!graph_) {
      const int64_t least = sequence_multiple_of(configuration_);
      const int64_t few = std::min((256 + least - 1) / least * least, configuration_.data.seq);
      batch.tokens = whole_.tokens.narrow(1, 0, few).contiguous();
      batch.targets = whole_.targets.narrow(1, 0, few).contiguous();
      batch = model_->part_of(batch);
    }
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      const auto begin = Clock::now();
      step(batch);
      seconds.push_back(seconds_since(begin));
      finish();
    }
    return median(seconds);
  }

  void measure(RunPlan& plan) const {
    probe_.correct(plan.ledger);
    probe_.measure(plan.ledger, *model_, optimizer_);
  }
  c10::Device device() const { return world_.device(); }
  double flops_per_token() const { return model_->flops_per_token(configuration_.data.seq); }

 private:
  /// As a graph, once some were made, if the run is so. Returns the loss.
  at::Tensor step(const Batch& batch) {
    if (!configuration_.train.graph) return plain_step(batch);
    if (!graph_) graph_.emplace(*model_);
    return graph_->run({batch}, [&](const std::vector<Batch>& given, at::Tensor& loss) {
      loss.copy_(plain_step(given.front()));
    });
  }

  at::Tensor plain_step(const Batch& batch) {
    const int64_t micro_batches = configuration_.data.micro_batches;
    const int64_t tokens = batch.tokens.numel() * micro_batches;
    const bool per_token = configuration_.train.loss == "per_token";
    at::Tensor sum;
    for (int64_t i = 0; i < micro_batches; ++i) {
      const auto loss = call(*model_, batch);
      optimizer_.scale(per_token ? loss : loss / tokens).backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
    }
    optimizer_.step({.tokens = per_token ? std::optional(tokens) : std::nullopt});
    return sum / tokens;
  }
  /// Blocks until the device is done.
  double finish() const { return optimizer_.gradient_norm(); }

  World emulated(
      const Configuration& configuration, int64_t ranks, const RehearseOptions& options) const {
    Emulation emulation{.size = ranks, .device = alone_.device()};
    if (options.network) {
      emulation.network = network_of(*options.network, configuration, ranks);
    }
    return World::emulated(emulation);
  }

  Configuration configuration_;
  World alone_;
  MemoryProbe probe_;
  World world_;
  std::shared_ptr<LanguageModel> model_;
  AdamW optimizer_;
  Batch whole_;  // of all ranks that share its sequences
  Batch batch_;
  std::optional<GraphedSteps> graph_;
};

RehearsedWorld rehearse_one(
    const Configuration& configuration, int64_t ranks, const RehearseOptions& options) {
  const auto say = [&](const std::string& line) {
    if (options.say) options.say(line);
  };
  const auto alone = world_alone(configuration);
  const auto device = alone.device();
  auto plan = plan_run(
      configuration,
      {.ranks = ranks, .network = options.network, .device = device.is_cuda() ? "cuda" : "cpu"});
  check_room("train.rehearse", plan.ledger, plan.configuration, ranks, device);
  RehearsalRun stage(alone, plan.configuration, ranks, options);
  say(c10::str("a world of ", ranks, ": warming up"));
  const auto begin = Clock::now();
  do {
    stage.timed_step();
  } while (seconds_since(begin) < options.load);
  for (int i = 0; configuration.train.graph && i < 3; ++i) stage.timed_step();
  std::vector<RehearsedStep> steps;
  for (int64_t i = 0; i < std::max<int64_t>(1, options.steps); ++i) {
    steps.push_back(stage.timed_step());
  }
  stage.measure(plan);  // what comes next is beside the graph, if there is one
  const auto memory = device_memory(stage.device());
  const auto record = stage.recorded_step();
  if (!options.profile.empty()) {
    profile_kernels(options.profile, [&] { stage.timed_step(); });
  }
  RehearsedWorld result{.plan = std::move(plan)};
  if (memory) {
    result.allocated = memory->peak_allocated;
    result.reserved = memory->peak_reserved;
  }
  result.host = stage.host_time();
  std::vector<double> seconds;
  for (const auto& step : steps) {
    seconds.push_back(step.seconds);
    say(c10::str(
        "a world of ", ranks, ": ", step.seconds, " s, loss ", step.loss, ", gradient norm ",
        step.gradient_norm));
  }
  result.steps = std::move(steps);
  result.seconds = median(seconds);
  result.real = record.timeline;
  result.exposed = record.timeline.exposed_total();
  result.times.update = record.update;
  for (size_t i = 0; i < record.units.size(); ++i) {
    result.times.units.emplace_back(result.plan.program.units()[i].name, record.units[i]);
  }
  const auto& data = configuration.data;
  const auto tokens = static_cast<double>(
      data.batch * data.seq * data.micro_batches / sharing_ranks_of(configuration));
  result.tokens_per_second = tokens / result.seconds;
  result.tflops = stage.flops_per_token() * result.tokens_per_second / 1e12;
  // What was measured replaces what was estimated.
  auto& known = result.plan;
  known.times = record.units;
  known.times_from = "measured";
  known.timeline = price(
      known.program,
      {.units = record.units,
       .update = record.update,
       .network =
           options.network ? network_of(*options.network, configuration, ranks) : Network()});
  known.tokens_per_second = tokens / known.timeline->seconds;
  return result;
}

}  // namespace

std::vector<RehearsedWorld> rehearse(
    const Configuration& configuration, const RehearseOptions& options) {
  TORCH_CHECK_VALUE(!options.worlds.empty(), "[train.rehearse] no world size is given");
  TORCH_CHECK_VALUE(
      configuration.model.kind != "vlm",
      "[train.rehearse] a model of kind \"vlm\" can't be rehearsed: a rehearsal has no images");
  use_expandable_segments();
  std::vector<RehearsedWorld> result;
  for (const int64_t ranks : options.worlds) {
    result.push_back(rehearse_one(configuration, ranks, options));
    auto& latest = result.back();
    if (!options.say) continue;
    options.say(c10::str(
        "a world of ", ranks, ": step ", latest.seconds, " s, waiting ", latest.exposed, " s, ",
        latest.tflops, " TFLOP/s"));
  }
  for (auto& one : result) {
    for (const auto& other : result) {
      one.plan.worlds.push_back(
          {other.plan.ranks, other.plan.ledger.measured().value_or(other.plan.ledger.planned()),
           other.seconds, other.exposed, other.tokens_per_second});
    }
  }
  return result;
}

}  // namespace sherd
