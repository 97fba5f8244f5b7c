// SPDX-License-Identifier: Apache-2.0
#include "sherd/train/bench.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "configuration/keys.h"
#include "configuration/setup.h"
#include "configuration/to_toml.h"
#include "device/peak_speed.h"
#include "device/power_meter.h"
#include "files/nearest_word.h"
#include "sherd/forecast/rehearse.h"
#include "train/small_units.h"

namespace sherd {
namespace {

/// TFLOP/s of the reference's products and attention, back to back and nothing else, when the chip
/// has settled at its 700 W.
constexpr double kH200Sustains = 611;
constexpr double kSecondsToSettle = 10;

// ---- what is run -------------------------------------------------------------------------------
using Value = std::variant<bool, int64_t, double, std::string, std::vector<double>>;

struct Override {
  std::string key;  ///< section.key
  Value value;
};

struct Variant {
  BenchVariant shown;
  int64_t ranks = 8;
  std::vector<Override> overrides{};  ///< of the reference; a key that is unknown drops the variant
  bool small_units = false;           ///< see small_units.h, in place of the reference's model
};

/// Llama-3-8B at its own length, as peers' numbers are told.
std::vector<Override> reference() {
  return {{"model.dim", 4096},       {"model.layers", 32}, {"model.heads", 32},
          {"model.kv_heads", 8},     {"model.ffn", 14336}, {"model.vocab", 128256},
          {"model.rope_theta", 5e5}, {"data.seq", 8192},   {"precision.recipe", "bf16_o2"},
          {"optim.lr", 3e-4}};
}

std::vector<Override> tiny() {
  return {{"model.dim", 64},       {"model.layers", 2},     {"model.heads", 4},
          {"model.kv_heads", 2},   {"model.ffn", 128},      {"model.vocab", 256},
          {"model.experts", 4},    {"model.top_k", 2},      {"model.expert_ffn", 32},
          {"model.pattern", "M*"}, {"model.ssm_state", 8},  {"model.ssm_head_dim", 16},
          {"model.ssm_groups", 1}, {"model.ssm_chunk", 16}, {"data.seq", 64},
          {"data.batch", 1}};
}

std::vector<Variant> all_variants() {
  return {
      {{"8b", "Llama-3-8B, sequence 8192", {"--compile"}}},
      {{"8b-graph", "the same as a CUDA graph", {"--compile"}}, 8, {{"train.graph", true}}},
      {{"8b-recompute", "the same, all recomputed", {"--compile", "--recompute", "full"}},
       8,
       {{"train.recompute", "full"}}},
      {{"8b-selective", "the same, gate and up recomputed"}, 8, {{"train.recompute", "selective"}}},
      {{"8layers", "8 of its layers, alone", {"--compile", "--layers", "8", "--world", "1"}},
       1,
       {{"model.layers", 8}}},
      {{"moe", "OLMoE-1B-7B's shape, sequence 4096"},
       8,
       {{"model.kind", "moe"},
        {"model.dim", 2048},
        {"model.layers", 16},
        {"model.heads", 16},
        {"model.kv_heads", 16},
        {"model.ffn", 1024},
        {"model.experts", 64},
        {"model.top_k", 8},
        {"model.expert_ffn", 1024},
        {"model.vocab", 50304},
        {"model.rope_theta", 1e4},
        {"data.seq", 4096},
        {"data.batch", 2}}},
      {{"small-units", "128 units with little to compute", {"--units", "small"}}, 8, {}, true},
      {{"small-units-graph", "the same as a CUDA graph", {"--units", "small"}},
       8,
       {{"train.graph", true}},
       true},
      // Mamba-2 keeps its chunks' matrices: without recompute they would not fit.
      {{"hybrid", "Nemotron-H-8B's layers, sequence 8192, all recomputed"},
       8,
       {{"model.kind", "hybrid"},
        {"model.layers", 52},
        {"model.pattern", "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"},
        {"model.ssm_state", 128},
        {"model.ssm_groups", 8},
        {"model.vocab", 131072},
        {"train.recompute", "full"}}},
  };
}

template <class T>
void assign(T& into, const Override& one) {
  const auto* value = std::get_if<T>(&one.value);
  TORCH_INTERNAL_ASSERT(value, "[train.bench] ", one.key, ": its value is of another type");
  into = *value;
}
template <class T>
void assign(std::optional<T>& into, const Override& one) {
  assign(into.emplace(), one);
}

/// False where there is no such key.
bool apply(Configuration& all, const Override& one) {
  bool found = false;
  sections(all, [&](const std::string& section, auto& keys_of) {
    keys(keys_of, [&](const char* name, auto& value, const Key&) {
      if (section + "." + name != one.key) return;
      assign(value, one);
      found = true;
    });
  });
  return found;
}

/// Nothing where a key is unknown.
std::optional<Configuration> configuration_of(const Variant& variant, bool quick) {
  Configuration all;
  for (const auto& overrides :
       {reference(), variant.overrides, quick ? tiny() : std::vector<Override>()}) {
    for (const auto& one : overrides) {
      if (!apply(all, one)) return std::nullopt;
    }
  }
  return all;
}

Variant variant_of(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& variant : all_variants()) {
    if (!configuration_of(variant, false)) continue;
    if (variant.shown.name == name) return variant;
    names.push_back(variant.shown.name);
  }
  const auto near = nearest_word(name, names);
  TORCH_CHECK_VALUE(
      false, "[train.bench] there is no variant '", name, "'",
      near ? ", did you mean " + *near + "?" : ".", " There are ", join(names, ", "));
}

// ---- how it is measured ------------------------------------------------------------------------
c10::Device device_of(const std::string& kind) {
  const bool cuda = kind == "cuda" || (kind == "auto" && torch::cuda::is_available());
  return cuda ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

double limit_of(const std::string& gpu, c10::Device device, const Configuration& configuration) {
  if (gpu == "NVIDIA H200") return kH200Sustains;
  return peak_matmul_tflops(device, compute_dtype_of(configuration.precision));
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
      "[train.bench] ", name, " does not train: loss ", step.loss, ", norm of the gradient ",
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
  for (const auto& variant : all_variants()) {
    if (configuration_of(variant, false)) result.push_back(variant.shown);
  }
  return result;
}

BenchVariant bench_variant(const std::string& name) {
  return variant_of(name).shown;
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
  const auto variant = variant_of(name);
  const auto device = device_of(options.device);
  auto configuration = configuration_of(variant, options.quick).value();
  configuration.device.kind = device.is_cuda() ? "cuda" : "cpu";
  const double settle = device.is_cuda() && !options.quick ? kSecondsToSettle : 0;
  BenchResult result{
      .variant = variant.shown, .ranks = variant.ranks, .load = options.load.value_or(settle)};
  if (options.quick) result.variant.about += ", made tiny";
  const PowerMeter meter(device);
  result.device = meter.name().empty() ? device.str() : meter.name();
  if (variant.small_units) {
    measure_small_units(configuration, device, options, result);
    for (const auto& step : result.steps) check_step(name, step);
    return result;
  }
  RehearseOptions rehearsing{
      .worlds = {variant.ranks},
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
  result.tokens = data.batch * data.seq * data.micro_batches;
  result.seconds = world.seconds;
  result.host = world.host;
  result.steps = std::move(world.steps);
  for (const auto& step : result.steps) check_step(name, step);
  result.exposed = world.exposed;
  result.tflops = world.tflops;
  result.ledger = std::move(world.plan.ledger);
  // The last: what it allocates would be counted above.
  result.limit = limit_of(meter.name(), device, configuration);
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

}  // namespace sherd
