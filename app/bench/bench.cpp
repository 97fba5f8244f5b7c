// SPDX-License-Identifier: Apache-2.0
#include "bench/bench.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/power_meter.h"
#include "bench/small_units.h"
#include "configuration/axes.h"
#include "device/peak_speed.h"
#include "files/nearest_word.h"
#include "forecast/rehearse.h"

namespace sherd::app {
namespace {

/// TFLOP/s of the reference's products and attention, back to back and nothing else, when the chip
/// has settled at its 700 W.
constexpr double kH200Sustains = 611;
constexpr double kSecondsToSettle = 10;

// ---- workloads ---------------------------------------------------------------------------------
struct Workload {
  BenchVariant shown;
  int64_t ranks = 8;
  void (*change)(Configuration&) = [](Configuration&) {};  ///< what differs from the reference
  bool small_units = false;  ///< see small_units.h, instead of the reference's model
};

/// Llama-3-8B at its own sequence length, the workload that other projects publish.
Configuration reference() {
  Configuration all;
  all.model.dim = 4096;
  all.model.layers = 32;
  all.model.heads = 32;
  all.model.kv_heads = 8;
  all.model.ffn = 14336;
  all.model.vocab = 128256;
  all.model.rope_theta = 5e5;
  all.data.seq = 8192;
  all.precision.recipe = "bf16_o2";
  all.optim.lr = 3e-4;
  return all;
}
constexpr auto kComputeDtype = c10::kBFloat16;  // of bf16_o2

void configure_tiny(Configuration& all) {
  all.model.dim = 64;
  all.model.layers = 2;
  all.model.heads = 4;
  all.model.kv_heads = 2;
  all.model.ffn = 128;
  all.model.vocab = 256;
  all.model.experts = 4;
  all.model.top_k = 2;
  all.model.expert_ffn = 32;
  all.model.pattern = "M*";
  all.model.ssm_state = 8;
  all.model.ssm_head_dim = 16;
  all.model.ssm_groups = 1;
  all.model.ssm_chunk = 16;
  all.data.seq = 64;
  all.data.batch = 1;
  if (all.precision.recipe == "fp8_block") {
    all.model.dim = 128;
    all.model.ffn = 256;
  }
  all.model.experts = std::max(all.model.experts, all.parallel.ep);
  if (!all.memory.budget.empty()) all.memory.budget = "1GiB";
}

/// OLMoE-1B-7B.
void configure_moe(Configuration& all) {
  all.model.kind = "moe";
  all.model.dim = 2048;
  all.model.layers = 16;
  all.model.heads = 16;
  all.model.kv_heads = 16;
  all.model.ffn = 1024;
  all.model.experts = 64;
  all.model.top_k = 8;
  all.model.expert_ffn = 1024;
  all.model.vocab = 50304;
  all.model.rope_theta = 1e4;
  all.data.seq = 4096;
  all.data.batch = 2;
}

/// Nemotron-H-8B.
void configure_hybrid(Configuration& all) {
  all.model.kind = "hybrid";
  all.model.layers = 52;
  all.model.pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
  all.model.ssm_state = 128;
  all.model.ssm_groups = 8;
  all.model.vocab = 131072;
}

void capture_graph(Configuration& all) {
  all.train.graph = true;
}

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all{
      {{"8b", "Llama-3-8B, sequence 8192", {"fsdp2.py", "--compile"}}},
      {{"8b-graph", "the same as a CUDA graph", {"fsdp2.py", "--compile"}}, 8, capture_graph},
      {{"8b-recompute",
        "the same, full recompute",
        {"fsdp2.py", "--compile", "--recompute", "full"}},
       8,
       [](Configuration& changed) { changed.train.recompute = "full"; }},
      {{"8b-fp8", "the same in fp8", {"fsdp2.py", "--compile", "--fp8"}},
       8,
       [](Configuration& changed) { changed.precision.recipe = "fp8"; }},
      {{"8b-fp8-graph", "the same in fp8 as a CUDA graph"},
       8,
       [](Configuration& changed) {
         changed.precision.recipe = "fp8";
         capture_graph(changed);
       }},
      {{"8b-fp8-recompute", "the same in fp8, full recompute"},
       8,
       [](Configuration& changed) {
         changed.precision.recipe = "fp8";
         changed.train.recompute = "full";
       }},
      {{"8b-fp8-wgrad16", "the same in fp8 but for weight gradients"},
       8,
       [](Configuration& changed) { changed.precision.recipe = "fp8_wgrad16"; }},
      {{"8b-fp8-block", "the same in fp8 with scales by blocks"},
       8,
       [](Configuration& changed) { changed.precision.recipe = "fp8_block"; }},
      {{"8b-mxfp8", "the same in MXFP8, emulated"},
       8,
       [](Configuration& changed) { changed.precision.recipe = "mxfp8"; }},
      {{"8b-selective", "the same, selective recompute"},
       8,
       [](Configuration& changed) { changed.train.recompute = "selective"; }},
      {{"8layers",
        "8 of its layers, a world of one rank",
        {"fsdp2.py", "--compile", "--layers", "8", "--world", "1"}},
       1,
       [](Configuration& changed) { changed.model.layers = 8; }},
      {{"moe", "OLMoE-1B-7B's shape, sequence 4096", {"fsdp2_moe.py", "--compile"}},
       8,
       configure_moe},
      {{"moe-graph", "the same as a CUDA graph", {"fsdp2_moe.py", "--compile"}},
       8,
       [](Configuration& changed) {
         configure_moe(changed);
         capture_graph(changed);
       }},
      {{"moe-recompute",
        "the same, full recompute",
        {"fsdp2_moe.py", "--compile", "--recompute", "full"}},
       8,
       [](Configuration& changed) {
         configure_moe(changed);
         changed.train.recompute = "full";
       }},
      {{"moe-selective", "the same, selective recompute"},
       8,
       [](Configuration& changed) {
         configure_moe(changed);
         changed.train.recompute = "selective";
       }},
      {{"moe-ep8", "the same, its experts on 8 ranks"},
       8,
       [](Configuration& changed) {
         configure_moe(changed);
         changed.parallel.ep = 8;
       }},
      {{"llama-128k-tp2-cp2",
        "Llama-3-8B, sequence 131072 on 4 of the ranks, recomputed as far as memory needs it"},
       8,
       [](Configuration& changed) {
         changed.data.seq = 131072;
         changed.parallel.tp = 2;
         changed.parallel.cp = 2;
         changed.memory.budget = "auto";
       }},
      {{"small-units", "128 units with little to compute", {"fsdp2.py", "--units", "small"}},
       8,
       [](Configuration&) {},
       true},
      {{"small-units-graph", "the same as a CUDA graph", {"fsdp2.py", "--units", "small"}},
       8,
       capture_graph,
       true},
      {{"hybrid", "Nemotron-H-8B's layers, sequence 8192", {"fsdp2_hybrid.py", "--compile"}},
       8,
       configure_hybrid},
      {{"hybrid-graph", "the same as a CUDA graph", {"fsdp2_hybrid.py", "--compile"}},
       8,
       [](Configuration& changed) {
         configure_hybrid(changed);
         capture_graph(changed);
       }},
      {{"hybrid-selective", "the same, selective recompute"},
       8,
       [](Configuration& changed) {
         configure_hybrid(changed);
         changed.train.recompute = "selective";
       }},
      {{"hybrid-recompute",
        "the same, full recompute",
        {"fsdp2_hybrid.py", "--compile", "--recompute", "full"}},
       8,
       [](Configuration& changed) {
         configure_hybrid(changed);
         changed.train.recompute = "full";
       }},
      {{"hybrid-fp8", "the same in fp8"},
       8,
       [](Configuration& changed) {
         configure_hybrid(changed);
         changed.precision.recipe = "fp8";
       }},
  };
  return all;
}

Configuration configuration_of(const Workload& workload, bool quick) {
  auto all = reference();
  workload.change(all);
  if (quick) configure_tiny(all);
  return all;
}

const Workload& workload_of(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const auto& workload : workloads()) {
    if (workload.shown.name == name) return workload;
    names.push_back(workload.shown.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  const auto near = nearest_word(name, names);
  TORCH_CHECK_VALUE(
      false, "[bench] there is no variant '", name, "'",
      near ? ", did you mean " + *near + "?" : ".", " There are ", list);
}

// ---- measuring ---------------------------------------------------------------------------------
c10::Device device_of(const std::string& kind) {
  const bool cuda = kind == "cuda" || (kind == "auto" && torch::cuda::is_available());
  return cuda ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

double limit_of(const std::string& gpu, c10::Device device) {
  return gpu == "NVIDIA H200" ? kH200Sustains : peak_matmul_tflops(device, kComputeDtype);
}

/// Rehearses, and notes what the device drew. The steps before the timed ones are like them, so it
/// does no harm that the moment between is known to a few steps only.
RehearsedWorld measured(
    const Configuration& configuration,
    const RehearseOptions& options,
    const PowerMeter& meter,
    BenchResult& result) {
  using Clock = PowerMeter::Clock;
  std::optional<Clock::time_point> begin;
  auto rehearsing = options;
  rehearsing.say = [&](const std::string& line) {
    if (!begin) begin = Clock::now();
    if (options.say) options.say(line);
  };
  auto world = std::move(rehearse(configuration, rehearsing).front());
  const auto after = [](Clock::time_point from, double seconds) {
    return from +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const auto first = after(begin.value(), options.load);
  const auto last = after(first, static_cast<double>(options.steps) * world.seconds);
  if (const auto mean = meter.mean(first, last)) {
    result.watts = mean->watts;
    result.sm_mhz = mean->sm_mhz;
  }
  return world;
}

void check_step(const std::string& name, const RehearsedStep& step) {
  TORCH_CHECK(
      std::isfinite(step.loss) && std::isfinite(step.gradient_norm) && step.gradient_norm > 0,
      "[bench] ", name, " does not train: loss ", step.loss, ", gradient norm ",
      step.gradient_norm);
}

void measure_small_units(
    const Configuration& configuration,
    c10::Device device,
    const BenchOptions& options,
    BenchResult& result) {
  SmallUnits small{.steps = options.steps, .load = result.load, .graph = configuration.train.graph};
  if (options.quick) small.units = 8;
  auto taken = time_small_units(device, small);
  result.tokens = 1;
  result.seconds = taken.seconds;
  if (device.is_cuda()) result.host = taken.host;
  result.steps = std::move(taken.steps);
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  if (!value) return nullptr;
  return *value;
}

}  // namespace

std::vector<BenchVariant> bench_variants() {
  std::vector<BenchVariant> result;
  for (const auto& workload : workloads()) result.push_back(workload.shown);
  return result;
}

BenchVariant bench_variant(const std::string& name) {
  return workload_of(name).shown;
}

std::optional<double> BenchResult::share() const {
  if (!tflops || !limit) return std::nullopt;
  return *tflops / *limit;
}

std::optional<double> BenchResult::joules() const {
  if (!watts) return std::nullopt;
  return *watts * seconds;
}

BenchResult bench(const std::string& name, const BenchOptions& options) {
  const auto& workload = workload_of(name);
  const auto device = device_of(options.device);
  auto configuration = configuration_of(workload, options.quick);
  configuration.device.kind = device.is_cuda() ? "cuda" : "cpu";
  const double settle = device.is_cuda() && !options.quick ? kSecondsToSettle : 0;
  BenchResult result{
      .variant = workload.shown, .ranks = workload.ranks, .load = options.load.value_or(settle)};
  if (options.quick) result.variant.about += ", tiny";
  const PowerMeter meter(device);
  result.device = meter.name().empty() ? device.str() : meter.name();
  if (workload.small_units) {
    measure_small_units(configuration, device, options, result);
    for (const auto& step : result.steps) check_step(name, step);
    return result;
  }
  RehearseOptions rehearsing{
      .worlds = {workload.ranks},
      .network = options.network,
      .steps = options.steps,
      .load = result.load};
  rehearsing.say = [&](const std::string& line) {
    if (options.say) options.say(c10::str(name, ": ", line));
  };
  auto world = measured(configuration, rehearsing, meter, result);
  result.allocated = world.allocated;
  result.reserved = world.reserved;
  const auto& data = configuration.data;
  result.tokens = data.batch * data.seq * data.micro_batches / sharing_ranks_of(configuration);
  result.seconds = world.seconds;
  result.host = world.host;
  result.steps = std::move(world.steps);
  for (const auto& step : result.steps) check_step(name, step);
  result.exposed = world.exposed;
  result.tflops = world.tflops;
  result.ledger = std::move(world.plan.ledger);
  // The last: what it allocates would be counted above.
  result.limit = limit_of(meter.name(), device);
  return result;
}

std::string to_json(const BenchResult& result) {
  using Json = nlohmann::ordered_json;
  auto entries = Json::array();
  int64_t planned = 0;
  for (const auto& entry : result.ledger.entries) {
    entries.push_back(
        {{"name", entry.name}, {"planned", entry.planned}, {"measured", or_null(entry.measured)}});
    if (entry.measured) planned += entry.planned;
  }
  auto steps = Json::array();
  for (const auto& step : result.steps) {
    steps.push_back(
        {{"seconds", step.seconds}, {"loss", step.loss}, {"gradient_norm", step.gradient_norm}});
  }
  // Both of what can be measured: on CPU that is what Sherd allocates.
  const Json memory{
      {"planned", entries.empty() ? Json() : Json(planned)},
      {"measured", or_null(result.ledger.measured())},
      {"allocated", or_null(result.allocated)},
      {"reserved", or_null(result.reserved)},
      {"entries", std::move(entries)}};
  const Json json{
      {"name", result.variant.name},
      {"about", result.variant.about},
      {"device", result.device},
      {"ranks", result.ranks},
      {"tokens", result.tokens},
      {"seconds_of_load", result.load},
      {"seconds", result.seconds},
      {"exposed_seconds", result.exposed},
      {"tokens_per_second", static_cast<double>(result.tokens) / result.seconds},
      {"host_seconds", or_null(result.host)},
      {"tflops", or_null(result.tflops)},
      {"limit_tflops", or_null(result.limit)},
      {"share_of_limit", or_null(result.share())},
      {"joules", or_null(result.joules())},
      {"watts", or_null(result.watts)},
      {"sm_mhz", or_null(result.sm_mhz)},
      {"memory", memory},
      {"steps", std::move(steps)}};
  return json.dump(1) + "\n";
}

}  // namespace sherd::app
