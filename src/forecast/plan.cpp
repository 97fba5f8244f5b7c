// SPDX-License-Identifier: Apache-2.0
#include "forecast/plan.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "configuration/byte_size.h"
#include "configuration/setup.h"
#include "device/device_memory.h"
#include "files/parse_json.h"
#include "forecast/budget.h"
#include "forecast/device_constants.h"
#include "forecast/rehearsal.h"
#include "forecast/run_costs.h"

namespace sherd {
namespace {

int64_t ranks_of(const Configuration& configuration, const PlanOptions& options) {
  if (options.ranks > 0) return options.ranks;
  return std::max(configuration.device.emulate, configuration.device.ranks);
}

void add_exchange(const ExchangeSpec& one, const Network& network, AxisTraffic& row) {
  row.axis = one.axis;
  row.collective = to_text(one.kind);
  ++row.calls;
  row.bytes += one.bytes;
  row.wire += wire_bytes(collective_of(one.kind), one.bytes, one.ranks);
  row.seconds += seconds(network, one);
}

std::vector<AxisTraffic> traffic_of_step(const Program& program, const Network& network) {
  std::map<std::pair<std::string, Collective>, AxisTraffic> rows;
  std::map<std::pair<std::string, ExchangeKind>, AxisTraffic> exchanges;
  for (const auto* section : program.step()) {
    for (int32_t position = 0; position < std::ssize(program.exchanges()); ++position) {
      for (const auto& one : program.exchanges_in(*section, position)) {
        add_exchange(one, network, exchanges[{one.axis, one.kind}]);
      }
    }
    for (const auto& one : section->instructions) {
      const auto collective = collective_of(one);
      if (!collective) continue;
      const auto& group =
          program.units()[static_cast<size_t>(one.unit)].groups[static_cast<size_t>(one.group)];
      const bool outer = one.axis == AxisKind::outer;
      const auto& axis = outer ? group.axes.outer : group.axes.inner;
      const int64_t size = outer ? group.axis_sizes.outer : group.axis_sizes.inner;
      auto& row = rows[{axis, *collective}];
      row.axis = axis;
      row.collective = to_text(*collective);
      ++row.calls;
      row.bytes += one.bytes;
      row.wire += wire_bytes(*collective, one.bytes, size);
      row.seconds += seconds(network.link(axis), *collective, one.bytes, size);
    }
  }
  std::vector<AxisTraffic> result;
  for (auto& [key, row] : rows) result.push_back(std::move(row));
  for (auto& [key, row] : exchanges) result.push_back(std::move(row));
  return result;
}

std::string count_text(int64_t parameters) {
  const auto value = static_cast<double>(parameters);
  std::ostringstream out;
  out.precision(3);
  if (value >= 1e9) {
    out << value / 1e9 << " B parameters";
  } else if (value >= 1e6) {
    out << value / 1e6 << " M parameters";
  } else {
    out << parameters << " parameters";
  }
  return out.str();
}

/// The recipe, and how much of the weights it has in fp8: experts, norms and others stay wider.
std::string precision_text(const PrecisionSection& precision, const Program& program) {
  const auto name = precision.recipe.value_or(precision.compute.value_or("fp32"));
  int64_t all = 0;
  int64_t encoded = 0;
  for (const auto& unit : program.units()) {
    for (const auto& group : unit.groups) {
      all += group.elements;
      if (group.encoding != WeightEncoding()) encoded += group.elements;
    }
  }
  if (encoded == 0) return name;
  return c10::str(name, " for ", 100 * encoded / all, " % of the weights, bf16 for the rest");
}

std::vector<std::pair<std::string, std::string>> facts_of(
    const Configuration& configuration, int64_t ranks, const Program& program) {
  const auto& [model, data] = std::tie(configuration.model, configuration.data);
  const auto& [shard, train] = std::tie(configuration.shard, configuration.train);
  std::vector<std::pair<std::string, std::string>> facts{
      {"model",
       c10::str(
           model.kind, ", dim ", model.dim, ", ", model.layers, " layers, vocab ", model.vocab)},
      {"ranks", c10::str(ranks)},
      {"strategy", strategy_of(configuration, ranks)},
      {"precision", precision_text(configuration.precision, program)},
      {"sequence", c10::str(data.seq)},
      {"batch",
       c10::str(
           data.batch, " x ", data.micro_batches, " micro-batches per ",
           sharing_ranks_of(configuration) > 1 ? c10::str(sharing_ranks_of(configuration), " ranks")
                                               : "rank")},
      {"recompute", train.recompute_layers > 0 && train.recompute != "none"
                        ? c10::str(train.recompute, ", ", train.recompute_layers, " layers")
                        : train.recompute},
      {"prefetch", c10::str(shard.prefetch)},
      {"kept gathered", c10::str(shard.keep_gathered)},
      {"memory", configuration.memory.kind}};
  if (shard.outer > 1) {
    facts.insert(
        facts.begin() + 3,
        {"outer", c10::str(shard.outer, " groups, ", shard.outer_strategy, " between them")});
  }
  if (const auto& parallel = configuration.parallel; parallel.cp * parallel.tp > 1) {
    facts.push_back(
        {"sequences shared by", c10::str("cp ", parallel.cp, " x tp ", parallel.tp, " ranks")});
  }
  if (const int64_t ep = configuration.parallel.ep; ep > 1) {
    const auto& strategy = shard.expert_strategy;
    facts.push_back(
        {"experts", c10::str("on ", ep, " ranks each, ", strategy.value_or(shard.strategy))});
  }
  return facts;
}

/// The model's own unit, the last, was measured with all others inside it.
std::vector<int64_t> without_inner_units(std::vector<int64_t> saved) {
  const int64_t inner = std::accumulate(saved.begin(), saved.end() - 1, int64_t{0});
  saved.back() = std::max<int64_t>(0, saved.back() - inner);
  return saved;
}

int64_t memory_of_device(const PlanOptions& options, c10::DeviceType target) {
  if (options.network && options.network->device.memory > 0) return options.network->device.memory;
  if (target != c10::DeviceType::CUDA) return 0;
  const auto memory = device_memory(c10::Device(c10::kCUDA, 0));
  return memory ? memory->total : 0;
}

RunPlan plan_one(const Configuration& configuration, int64_t ranks, const PlanOptions& options) {
  const auto target = target_of(configuration, options);
  auto rehearsal = dry_run(configuration, ranks, target);
  const auto costs = costs_of(configuration, rehearsal, ranks, options);
  auto ledger = planned_ledger(rehearsal, target, ranks);
  RunPlan plan{.program = std::move(rehearsal.program)};
  plan.configuration = configuration;
  plan.ranks = ranks;
  plan.device = target == c10::DeviceType::CUDA ? "cuda" : "cpu";
  plan.title = c10::str(
      configuration.model.kind, ", ", count_text(rehearsal.parameters), ", ", ranks,
      ranks == 1 ? " rank" : " ranks");
  plan.facts = facts_of(configuration, ranks, plan.program);
  plan.ledger = std::move(ledger);
  plan.saved_activations = without_inner_units(rehearsal.saved_activations);
  plan.flops_per_token = rehearsal.flops_per_token;
  plan.device_tflops = options.network ? options.network->device.tflops : 0;
  plan.device_memory = memory_of_device(options, target);
  plan.traffic = traffic_of_step(plan.program, costs.costs.network);
  plan.times_from = costs.from;
  if (costs.from.empty()) return plan;
  plan.times = costs.costs.units;
  plan.timeline = price(plan.program, costs.costs);
  const auto tokens = static_cast<double>(
      configuration.data.batch * configuration.data.micro_batches * configuration.data.seq /
      sharing_ranks_of(configuration));
  plan.tokens_per_second = tokens / plan.timeline->seconds;
  return plan;
}

}  // namespace

WorldPlan in_short(const RunPlan& plan) {
  WorldPlan result;
  result.ranks = plan.ranks;
  result.bytes = plan.ledger.planned();
  result.tokens_per_second = plan.tokens_per_second;
  if (plan.timeline) {
    result.seconds = plan.timeline->seconds;
    result.exposed = plan.timeline->exposed_total();
  }
  return result;
}

RunPlan plan_run(const Configuration& configuration, const PlanOptions& options) {
  auto wanted = configuration;
  wanted.model = resolved(wanted.model);
  const int64_t ranks = ranks_of(wanted, options);
  const bool limited = !wanted.memory.budget.empty();
  if (limited) wanted = within_budget(wanted, ranks, options);
  auto plan = plan_one(wanted, ranks, options);
  if (limited) {
    const auto room = room_in_budget(wanted, ranks, options);
    plan.facts.emplace_back("budget", wanted.memory.budget);
    plan.facts.emplace_back("largest batch that fits", c10::str(room.batch));
    plan.facts.emplace_back("longest sequence that fits", c10::str(room.seq));
  }
  for (const int64_t other : options.worlds) {
    plan.worlds.push_back(
        other == ranks ? in_short(plan) : in_short(plan_one(wanted, other, options)));
  }
  return plan;
}

UnitTimes read_unit_times(const std::string& path) {
  TORCH_CHECK_VALUE(std::ifstream(path), "[train.plan] ", path, ": it can't be read");
  const auto json = read_json<nlohmann::json>(path).value;
  const auto number = [](const nlohmann::json& of, const char* key) {
    return of.is_object() && of.contains(key) && of[key].is_number() && of[key].get<double>() >= 0;
  };
  TORCH_CHECK_VALUE(
      number(json, "update") && json.contains("units") && json["units"].is_array(), "[train.plan] ",
      path,
      ": not a file of unit times (\"update\" and \"units\"); write one with sherd rehearse "
      "--times");
  UnitTimes times;
  times.update = json["update"].get<double>();
  for (const auto& one : json["units"]) {
    TORCH_CHECK_VALUE(
        number(one, "forward") && number(one, "backward") && one.contains("name") &&
            one["name"].is_string(),
        "[train.plan] ", path,
        ": a unit needs \"name\", and \"forward\" and \"backward\" in "
        "seconds, at least 0: ",
        one.dump());
    times.units.emplace_back(
        one["name"].get<std::string>(),
        UnitTime{one["forward"].get<double>(), one["backward"].get<double>()});
  }
  return times;
}

std::string to_json(const UnitTimes& times) {
  nlohmann::ordered_json json{{"update", times.update}, {"units", nlohmann::json::array()}};
  for (const auto& [name, time] : times.units) {
    json["units"].push_back(
        {{"name", name}, {"forward", time.forward}, {"backward", time.backward}});
  }
  return json.dump(1) + "\n";
}

}  // namespace sherd
