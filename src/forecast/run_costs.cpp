// SPDX-License-Identifier: Apache-2.0
#include "forecast/run_costs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <utility>

#include "configuration/setup.h"
#include "forecast/device_constants.h"

namespace sherd {
namespace {

/// AdamW reads and writes main weight and both moments, reads the gradient and writes the model
/// weight.
constexpr double kUpdateBytes = 4 * 2 + 4 * 4 + 4 + 2;

Costs measured_costs(const Program& program, const UnitTimes& times) {
  Costs costs;
  costs.update = times.update;
  for (const auto& unit : program.units()) {
    const auto found = std::find_if(times.units.begin(), times.units.end(), [&](const auto& one) {
      return one.first == unit.name;
    });
    TORCH_CHECK_VALUE(
        found != times.units.end(), "[train.plan] the file of unit times has no unit '", unit.name,
        "': it was measured with another model; rehearse this one");
    costs.units.push_back(found->second);
  }
  return costs;
}

/// A backward has two products for each of the forward; what is recomputed comes on top.
Costs estimated_costs(
    const Configuration& configuration, const Rehearsal& rehearsal, const DeviceSpeed& device) {
  const auto& data = configuration.data;
  const auto tokens = static_cast<double>(data.batch * data.seq / sharing_ranks_of(configuration));
  const auto& train = configuration.train;
  Costs costs;
  const auto recomputes = [&](const UnitOperations& unit) {
    return unit.layer && (train.recompute_layers == 0 || *unit.layer < train.recompute_layers);
  };
  for (const auto& unit : rehearsal.operations) {
    double again = 0;
    if (recomputes(unit) && train.recompute == "full") again = unit.forward;
    if (recomputes(unit) && train.recompute == "selective") again = unit.selective;
    const double seconds = tokens / (device.tflops * 1e12);  // of one operation per token
    costs.units.push_back({unit.forward * seconds, (2 * unit.forward + again) * seconds});
  }
  costs.memory_bandwidth = device.memory_bandwidth;
  if (device.memory_bandwidth > 0) {
    const auto elements = static_cast<double>(rehearsal.optimizer.moments) / 8;
    costs.update = elements * kUpdateBytes / device.memory_bandwidth;
  }
  return costs;
}

/// Those of the world, of the data-parallel axes of each mesh, and of exchanges.
int64_t communicators_of(const Rehearsal& rehearsal) {
  std::set<std::pair<std::string, bool>> axes;  // meshes differ in the inner one
  for (const auto& unit : rehearsal.program.units()) {
    for (const auto& group : unit.groups) {
      axes.emplace(group.axes.inner, false);
      if (group.has_outer) axes.emplace(group.axes.inner, true);
    }
  }
  return kCommunicators + std::ssize(axes) * kCommunicatorsOfAxis +
         rehearsal.exchange_axes * kCommunicatorsOfExchange;
}

}  // namespace

c10::DeviceType target_of(const Configuration& configuration, const PlanOptions& options) {
  const auto& kind = options.device.empty() ? configuration.device.kind : options.device;
  return kind == "cpu" ? c10::DeviceType::CPU : c10::DeviceType::CUDA;
}

RunCosts costs_of(
    const Configuration& configuration,
    const Rehearsal& rehearsal,
    int64_t ranks,
    const PlanOptions& options) {
  const auto network =
      options.network ? network_of(*options.network, configuration, ranks) : Network{};
  return costs_of(configuration, rehearsal, options, network);
}

RunCosts costs_of(
    const Configuration& configuration,
    const Rehearsal& rehearsal,
    const PlanOptions& options,
    const Network& network) {
  RunCosts result;
  if (options.times) {
    result.costs = measured_costs(rehearsal.program, *options.times);
    result.from = "measured unit times";
  } else if (options.network && options.network->device.tflops > 0) {
    result.costs = estimated_costs(configuration, rehearsal, options.network->device);
    result.from = "matrix products at the device's speed, an estimate";
  }
  if (options.network) {
    result.costs.network = network;
    if (!result.from.empty()) result.from += "; network: " + options.network->name;
  } else if (!result.from.empty()) {
    result.from += "; no network: collectives take no time";
  }
  return result;
}

Ledger planned_ledger(const Rehearsal& rehearsal, c10::DeviceType target, int64_t ranks) {
  Ledger ledger;
  const auto& bytes = rehearsal.bytes;
  ledger.at("model weights").planned = bytes.model_weights;
  ledger.at("main weights").planned = bytes.main_weights;
  ledger.at("main gradients").planned = bytes.main_gradients;
  ledger.at("optimizer state").planned = rehearsal.optimizer.moments;
  ledger.at("arena").planned = bytes.arena;
  ledger.at("control").planned = bytes.control + rehearsal.optimizer.control;
  ledger.at("activations").planned = rehearsal.activations;
  if (target != c10::DeviceType::CUDA) return ledger;
  const auto assumed = [&](const char* name, int64_t planned) {
    auto& entry = ledger.at(name);
    entry.planned = planned;
    entry.note = "assumed";
  };
  assumed("kernel workspaces", kWorkspaceBytes);
  const int64_t communicators = ranks > 1 ? communicators_of(rehearsal) : 0;
  assumed("communicators", communicators * kCommunicatorBytes);
  assumed("CUDA context", kContextBytes);
  assumed("kernels and libraries", kLibraryBytes);
  return ledger;
}

}  // namespace sherd
