// SPDX-License-Identifier: Apache-2.0
#include "forecast/run_costs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <utility>

#include "configuration/setup.h"
#include "forecast/device_constants.h"
#include "sherd/shard/precision.h"

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

/// The seconds that products take for a number of tokens.
class ProductTimes {
 public:
  ProductTimes(const Configuration& configuration, const DeviceSpeed& device, double tokens)
      : wide_(tokens / (device.tflops * 1e12)), narrow_(wide_), narrow_weight_gradient_(wide_) {
    const auto& recipe = configuration.precision.recipe;
    const auto fp8 = recipe ? Precision::recipe(*recipe).fp8 : Fp8::none;
    // MXFP8 is emulated by products in bf16.
    if (device.tflops_fp8 == 0 || fp8 == Fp8::none || fp8 == Fp8::mx) return;
    narrow_ = tokens / (device.tflops_fp8 * 1e12);
    if (fp8 != Fp8::rows_wgrad16) narrow_weight_gradient_ = narrow_;
  }
  double of(double all, double in_fp8) const { return (all - in_fp8) * wide_ + in_fp8 * narrow_; }
  double of_weight_gradients(double all, double in_fp8) const {
    return (all - in_fp8) * wide_ + in_fp8 * narrow_weight_gradient_;
  }

 private:
  // Of an operation per token.
  double wide_;
  double narrow_;
  double narrow_weight_gradient_;
};

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
  const ProductTimes times(configuration, device, tokens);
  for (size_t i = 0; i < rehearsal.operations.size(); ++i) {
    const auto& unit = rehearsal.operations[i];
    const auto& fp8 = rehearsal.fp8[i];
    const double forward = times.of(unit.forward, fp8.forward);
    double again = 0;
    if (recomputes(unit) && train.recompute == "full") again = forward;
    if (recomputes(unit) && train.recompute == "selective") {
      again = times.of(unit.selective, fp8.selective);
    }
    const double weight_gradients = times.of_weight_gradients(unit.forward, fp8.forward);
    costs.units.push_back({forward, forward + weight_gradients + again});
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
    entry.note = kAssumed;
  };
  assumed("kernel workspaces", kWorkspaceBytes);
  const int64_t communicators = ranks > 1 ? communicators_of(rehearsal) : 0;
  assumed("communicators", communicators * kCommunicatorBytes);
  assumed("CUDA context", kContextBytes);
  assumed("kernels and libraries", kLibraryBytes);
  return ledger;
}

}  // namespace sherd
