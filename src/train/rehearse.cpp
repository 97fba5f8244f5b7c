// SPDX-License-Identifier: Apache-2.0
#include "sherd/train/rehearse.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>

#include "sherd/comm/device_memory.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "sherd/shard/recording.h"
#include "train/graphed_steps.h"
#include "train/kernel_profile.h"
#include "train/memory_probe.h"
#include "train/optimizer.h"
#include "train/setup.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Batch random_batch(const Configuration& configuration, c10::Device device) {
  const auto& [model, data] = std::tie(configuration.model, configuration.data);
  const auto numbers = at::TensorOptions().dtype(at::kLong).device(device);
  Batch batch;
  batch.tokens = at::randint(model.vocab, {data.batch, data.seq}, numbers);
  batch.targets = at::randint(model.vocab, {data.batch, data.seq}, numbers);
  return batch;
}

/// A run's steps in a world that isn't there.
class Stage {
 public:
  Stage(const Configuration& configuration, int64_t ranks, const RehearseOptions& options)
      : configuration_(configuration),
        alone_(world_alone(configuration)),
        probe_(alone_.device()),
        world_(emulated(configuration, ranks, options)),
        model_(model_of(configuration, mesh_of(configuration.shard, world_))),
        optimizer_(*model_, optimizer_of(configuration, *model_)),
        batch_(random_batch(configuration, world_.device())) {
    probe_.note_communicators(configuration.memory.symmetric ? model_bytes(*model_).arena : 0);
    restart_memory_peaks(world_.device());
  }

  /// As a graph, once some were made, if the run is so.
  void step() {
    if (!configuration_.train.graph) return plain_step();
    if (!graph_) graph_.emplace(*model_);
    graph_->run({batch_}, [&](const std::vector<Batch>& given, at::Tensor&) {
      batch_ = given.front();
      plain_step();
    });
  }

  void plain_step() {
    const auto& data = configuration_.data;
    const double weight = 1 / static_cast<double>(data.batch * data.seq * data.micro_batches);
    for (int64_t i = 0; i < data.micro_batches; ++i) {
      const auto loss = call(*model_, batch_);
      optimizer_.scale(loss * weight).backward();
    }
    const bool per_token = configuration_.train.loss == "per_token";
    optimizer_.step({.tokens = per_token ? std::optional(data.batch * data.seq) : std::nullopt});
  }
  /// Blocks until the device is done.
  double finish() const { return optimizer_.gradient_norm(); }

  double timed_step() {
    const auto begin = Clock::now();
    step();
    finish();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  StepRecord recorded_step() {
    Recording recording(*model_);
    plain_step();
    finish();
    return recording.finish();
  }

  void measure(RunPlan& plan) const {
    probe_.correct(plan.ledger);
    probe_.measure(plan.ledger, *model_, optimizer_);
  }
  double flops_per_token() const { return model_->flops_per_token(configuration_.data.seq); }

 private:
  static World world_alone(const Configuration& configuration) {
    auto device = configuration;
    device.device.emulate = 0;
    device.device.network.reset();
    return world_of(device);
  }
  World emulated(
      const Configuration& configuration, int64_t ranks, const RehearseOptions& options) const {
    Emulation emulation{.size = ranks, .device = alone_.device()};
    if (options.network) {
      emulation.network = network_of(*options.network, axes_of(configuration.shard, ranks));
    }
    return World::emulated(emulation);
  }

  Configuration configuration_;
  World alone_;
  MemoryProbe probe_;
  World world_;
  std::shared_ptr<LanguageModel> model_;
  AdamW optimizer_;
  Batch batch_;
  std::optional<GraphedSteps> graph_;
};

RehearsedWorld rehearse_one(
    const Configuration& configuration, int64_t ranks, const RehearseOptions& options) {
  const auto say = [&](const std::string& line) {
    if (options.say) options.say(line);
  };
  PlanOptions planning{.ranks = ranks, .network = options.network};
  auto plan = plan_run(configuration, planning);
  Stage stage(plan.configuration, ranks, options);
  say(c10::str("a world of ", ranks, ": warming up"));
  const auto begin = Clock::now();
  do {
    stage.timed_step();
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < options.load);
  for (int i = 0; configuration.train.graph && i < 3; ++i) stage.timed_step();
  std::vector<double> seconds;
  for (int64_t i = 0; i < std::max<int64_t>(1, options.steps); ++i) {
    seconds.push_back(stage.timed_step());
  }
  stage.measure(plan);  // what comes next is beside the graph, if there is one
  const auto record = stage.recorded_step();
  if (!options.profile.empty()) {
    profile_kernels(options.profile, [&] { stage.timed_step(); });
  }
  RehearsedWorld result{.plan = std::move(plan)};
  result.seconds = median(seconds);
  result.real = record.timeline;
  result.exposed = record.timeline.exposed_total();
  result.times.update = record.update;
  for (size_t i = 0; i < record.units.size(); ++i) {
    result.times.units.emplace_back(result.plan.program.units()[i].name, record.units[i]);
  }
  const auto& data = configuration.data;
  const auto tokens = static_cast<double>(data.batch * data.seq * data.micro_batches);
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
       .network = options.network
                      ? network_of(*options.network, axes_of(configuration.shard, ranks))
                      : Network()});
  known.tokens_per_second = tokens / known.timeline->seconds;
  return result;
}

}  // namespace

std::vector<RehearsedWorld> rehearse(
    const Configuration& configuration, const RehearseOptions& options) {
  TORCH_CHECK_VALUE(!options.worlds.empty(), "[train.rehearse] no size of a world is given");
  TORCH_CHECK_VALUE(
      configuration.model.kind != "vlm",
      "[train.rehearse] a model of kind \"vlm\" needs images, which a rehearsal does not have");
  reserve_little();
  std::vector<RehearsedWorld> result;
  for (const int64_t ranks : options.worlds) {
    result.push_back(rehearse_one(configuration, ranks, options));
    auto& latest = result.back();
    if (!options.say) continue;
    options.say(c10::str(
        "a world of ", ranks, ": step ", latest.seconds, " s, standing still ", latest.exposed,
        " s, ", latest.tflops, " TFLOP/s"));
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
