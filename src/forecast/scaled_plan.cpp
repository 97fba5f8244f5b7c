// SPDX-License-Identifier: Apache-2.0
#include "forecast/scaled_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "configuration/axes.h"
#include "configuration/setup.h"
#include "configuration/strategies.h"

namespace sherd {
namespace {

constexpr int64_t kUsualDepth = 1;
constexpr std::array<int64_t, 5> kDepths{1, 2, 3, 4, 0};
/// So many micro-batches that each further one adds the same: roughly, and closely.
constexpr int64_t kFewPasses = 3;
constexpr int64_t kManyPasses = 32;
constexpr std::array kModes{Recompute::none, Recompute::selective, Recompute::full};

/// The placements of an arrangement's groups.
struct Placements {
  Placements(const Configuration& configuration, const Arrangement& arrangement)
      : outer(arrangement.outer) {
    const auto shard = arranged(configuration, arrangement).shard;
    all = placement_of(shard);
    experts = placement_of_experts(shard);
  }
  /// The group as the arrangement shards it. A layout over all ranks can be cut evenly over any
  /// part of them, so the elements stay.
  GroupSpec sharded(const GroupSpec& group) const {
    auto result = group;
    const int64_t ranks = group.axis_sizes.inner * group.axis_sizes.outer;
    result.placement = group.axes.inner == "edp" ? experts : all;
    result.axis_sizes = {ranks / outer, outer};
    result.has_outer = outer > 1;
    result.axes.outer = outer > 1 ? "dp_outer" : "";
    return result;
  }
  int64_t outer;
  Placement all{Strategy::no_shard};
  Placement experts{Strategy::no_shard};
};

/// The bytes that depend on the size of a rank's part; scales of fp8 are left out.
struct PartBytes {
  double all = 0;
  double moments = 0;
};
PartBytes part_bytes(const std::vector<UnitSpec>& units, const Placements& placements) {
  PartBytes bytes;
  for (const auto& unit : units) {
    for (const auto& one : unit.groups) {
      const auto& placement = one.axes.inner == "edp" ? placements.experts : placements.all;
      const int64_t ranks = one.axis_sizes.inner * one.axis_sizes.outer;
      const auto part = [&](Role role) {
        const auto& spreads = placement.spreads(role);
        int64_t count = spreads.inner == Spread::shard ? ranks / placements.outer : 1;
        if (spreads.outer == Spread::shard) count *= placements.outer;
        return static_cast<double>(one.elements / count);
      };
      const auto& size = one.bytes;
      bytes.all += part(Role::parameter) * static_cast<double>(size.model);
      if (!one.shares_weight) bytes.all += part(Role::optimizer) * static_cast<double>(size.main);
      if (!one.trainable) continue;
      bytes.all += part(Role::gradient) * static_cast<double>(size.gradient);
      bytes.moments += part(Role::optimizer) * 2 * 4;  // both in fp32
    }
  }
  bytes.all += bytes.moments;
  return bytes;
}

/// The link on which a collective of `as_if` ranks takes as long as one of `ranks` on the given
/// one, with `share` of its bytes.
Link link_as_if(Link link, int64_t ranks, int64_t as_if, double share) {
  const auto sent = [](int64_t count) {  // of a full buffer, by the ring algorithms
    return static_cast<double>(count - 1) / static_cast<double>(count);
  };
  if (ranks > 1 && as_if > 1) link.bandwidth *= sent(as_if) / (sent(ranks) * share);
  return link;
}

}  // namespace

ScaledPlans::ScaledPlans(
    const Configuration& configuration, int64_t ranks, const PlanOptions& options, int64_t memory)
    : ranks_(ranks),
      options_(options),
      memory_(memory),
      target_(target_of(configuration, options)),
      configuration_(configuration),
      few_layers_(configuration, ranks, options) {}

const Network& ScaledPlans::network_of_axes(const Arrangement& arrangement) {
  const AxesKey key{arrangement.outer, arrangement.cp, arrangement.tp, arrangement.ep};
  const auto found = networks_.find(key);
  if (found != networks_.end()) return found->second;
  const auto configuration = arranged(configuration_, arrangement);
  return networks_.emplace(key, network_of(*options_.network, configuration, ranks_)).first->second;
}

/// See Note [Programs of other axis sizes].
Network ScaledPlans::network_for(const Arrangement& arrangement, const Arrangement& of) {
  auto network = network_of_axes(arrangement);
  if (arrangement.outer == of.outer) return network;
  const auto data_axis = data_axis_of(arranged(configuration_, arrangement));
  for (auto& [axis, link] : network.axes) {
    if (axis == "tp" || axis == "cp" || axis == "ep") continue;
    if (axis == "dp_outer") {
      // Between groups of ranks, each sends its part of what they shard.
      const double share =
          arrangement.strategy == Strategy::no_shard
              ? 1
              : static_cast<double>(arrangement.outer) / static_cast<double>(of.outer);
      link = link_as_if(link, arrangement.outer, of.outer, share);
    } else {
      const int64_t parts = axis == "edp" ? arrangement.ep : axis == data_axis ? 1 : arrangement.tp;
      const int64_t ranks = ranks_ / parts;
      link = link_as_if(link, ranks / arrangement.outer, ranks / of.outer, 1);
    }
  }
  return network;
}

Costs& ScaledPlans::costs(const Arrangement& arrangement, int64_t layers, Recompute mode) {
  const CostsKey key{arrangement.cp,    arrangement.tp, arrangement.ep,
                     arrangement.batch, mode,           layers};
  const auto found = costs_.find(key);
  if (found != costs_.end()) return found->second;
  const auto configuration = few_layers_.configuration(arrangement, layers, mode);
  const auto& rehearsal = few_layers_.dry_run_of(arrangement, layers, mode);
  auto costs = costs_of(configuration, rehearsal, options_, network_of_axes(arrangement)).costs;
  // That of one byte of moments.
  costs.update /= static_cast<double>(rehearsal.optimizer.moments);
  return costs_.emplace(key, std::move(costs)).first->second;
}

ScaledPlans::Skeleton ScaledPlans::skeleton(
    const Arrangement& arrangement, int64_t layers, int64_t depth, int64_t passes) {
  auto rehearsal = few_layers_.dry_run_of(arrangement, layers, Recompute::none);
  auto options = rehearsal.program.options();
  options.prefetch_depth = depth;
  options.micro_batches = passes;
  const Placements placements(configuration_, arrangement);
  auto units = rehearsal.program.units();
  for (auto& unit : units) {
    for (auto& group : unit.groups) group = placements.sharded(group);
  }
  rehearsal.program = Program::build(std::move(units), rehearsal.program.order(), options);
  const auto bytes = rehearsal.program.bytes();
  rehearsal.bytes.model_weights = bytes.model_weights;
  rehearsal.bytes.main_weights = bytes.main_weights;
  rehearsal.bytes.main_gradients = bytes.main_gradients;
  rehearsal.bytes.arena = 0;
  rehearsal.activations = 0;
  const auto parts = part_bytes(rehearsal.program.units(), placements);
  rehearsal.optimizer.moments = static_cast<int64_t>(parts.moments);
  const auto resident = planned_ledger(rehearsal, target_, ranks_).planned();
  return {arrangement, std::move(rehearsal.program), static_cast<double>(resident), parts.all};
}

ScaledPlans::Skeletons ScaledPlans::shared_skeletons(
    const Arrangement& arrangement, int64_t passes) {
  const auto of = [&](int64_t layers) -> const Skeleton& {
    const int64_t group = ranks_ / arrangement.outer;
    // Over one rank there are no collectives.
    const SkeletonKey key{
        arrangement.cp,
        arrangement.tp,
        arrangement.ep,
        arrangement.strategy,
        arrangement.outer_strategy,
        arrangement.outer > 1,
        group == arrangement.ep,
        group == arrangement.tp,
        layers,
        passes};
    const auto found = skeletons_.find(key);
    if (found != skeletons_.end()) return found->second;
    return skeletons_.emplace(key, skeleton(arrangement, layers, kUsualDepth, passes))
        .first->second;
  };
  return {of(few_layers_.few()), of(few_layers_.more())};
}

double ScaledPlans::resident_of(
    const Arrangement& arrangement, const Skeleton& skeleton, int64_t layers) {
  const auto& units = few_layers_.dry_run_of(arrangement, layers, Recompute::none).program.units();
  const Placements placements(configuration_, arrangement);
  return skeleton.resident + part_bytes(units, placements).all - skeleton.parts;
}

double ScaledPlans::seconds(
    const Arrangement& arrangement, const Skeleton& skeleton, int64_t layers, Recompute mode) {
  const auto& units = few_layers_.dry_run_of(arrangement, layers, Recompute::none).program.units();
  auto priced = costs(arrangement, layers, mode);
  priced.network = network_for(arrangement, skeleton.of);
  priced.update *= part_bytes(units, Placements(configuration_, arrangement)).moments;
  // Recomputation changes neither instructions nor addresses, only what ranks exchange.
  const auto& exchanges = few_layers_.dry_run_of(arrangement, layers, mode).program.exchanges();
  if (exchanges.empty()) return price(skeleton.program, priced).seconds;
  return price(skeleton.program.with_exchanges(exchanges), priced).seconds;
}

int64_t ScaledPlans::resident(const Arrangement& arrangement) {
  const Placements placements(configuration_, arrangement);
  const auto with = [&](int64_t layers) {
    const auto& units =
        few_layers_.dry_run_of(arrangement, layers, Recompute::none).program.units();
    return part_bytes(units, placements).all;
  };
  return std::llround(few_layers_.extrapolated(with(few_layers_.few()), with(few_layers_.more())));
}

/// Recomputes as few layers as fit. `others`: all bytes but activations; `seconds(mode)`: those of
/// a step that recomputes all layers.
template <class Seconds>
void ScaledPlans::choose(
    const Arrangement& arrangement,
    double others,
    int64_t correction,
    int64_t depth,
    const Seconds& seconds,
    Estimate& best) {
  const auto limit = static_cast<double>(memory_ - correction);
  const int64_t all = few_layers_.all();
  for (const auto mode : kModes) {
    const auto activations = few_layers_.activations(arrangement, mode);
    const auto bytes = [&](int64_t recomputed) {
      return others + few_layers_.peak(activations, recomputed);
    };
    int64_t recomputed = mode == Recompute::none ? 0 : 1;
    while (recomputed > 0 && recomputed < all && bytes(recomputed) > limit) ++recomputed;
    if (bytes(recomputed) > limit) {
      const auto needed = static_cast<int64_t>(std::ceil(bytes(recomputed)));
      if (!best.fits) best.bytes = std::min(best.bytes, needed);
      continue;
    }
    double taken = seconds(Recompute::none);
    if (recomputed > 0) {
      const double share = static_cast<double>(recomputed) / static_cast<double>(all);
      taken += share * (seconds(mode) - taken);
    }
    // Less than a nanosecond is rounding.
    const bool shorter = std::llround(taken * 1e9) < std::llround(best.seconds * 1e9);
    if (!best.fits || shorter) {
      best = {
          .fits = true,
          .bytes = std::llround(bytes(recomputed)),
          .seconds = taken,
          .prefetch = depth,
          .recompute = mode,
          .recompute_layers = recomputed == all ? 0 : recomputed};
    }
    if (mode == Recompute::none) break;  // no recomputation makes a step shorter
  }
}

Estimate ScaledPlans::rough(const Arrangement& arrangement) {
  Estimate best{.bytes = std::numeric_limits<int64_t>::max()};
  const int64_t passes = arrangement.micro_batches;
  const auto few = few_layers_.few(), more = few_layers_.more();
  const auto seconds_with = [&](int64_t some, Recompute mode) {
    const auto skeletons = shared_skeletons(arrangement, some);
    const double taken = seconds(arrangement, skeletons.more, more, mode);
    if (few == more) return taken;
    return few_layers_.extrapolated(seconds(arrangement, skeletons.few, few, mode), taken);
  };
  const auto seconds_of = [&](Recompute mode) {
    if (passes <= kFewPasses) return seconds_with(passes, mode);
    const double less = seconds_with(kFewPasses - 1, mode), taken = seconds_with(kFewPasses, mode);
    return taken + static_cast<double>(passes - kFewPasses) * (taken - less);
  };
  const auto skeletons = shared_skeletons(arrangement, std::min(passes, kFewPasses));
  const double resident = few_layers_.extrapolated(
      resident_of(arrangement, skeletons.few, few), resident_of(arrangement, skeletons.more, more));
  const auto arena = static_cast<double>(skeletons.more.program.bytes().arena);
  choose(arrangement, resident + arena, 0, kUsualDepth, seconds_of, best);
  return best;
}

Estimate ScaledPlans::close(const Arrangement& arrangement, int64_t correction) {
  Estimate best{.bytes = std::numeric_limits<int64_t>::max()};
  const int64_t layers = few_layers_.all();
  const int64_t passes = arrangement.micro_batches;
  for (const int64_t depth : kDepths) {
    const auto all = skeleton(arrangement, layers, depth, std::min(passes, kManyPasses));
    const auto seconds_of = [&](Recompute mode) {
      const double taken = seconds(arrangement, all, layers, mode);
      if (passes <= kManyPasses) return taken;
      const auto fewer = skeleton(arrangement, layers, depth, kManyPasses - 1);
      const double less = seconds(arrangement, fewer, layers, mode);
      return taken + static_cast<double>(passes - kManyPasses) * (taken - less);
    };
    const auto arena = static_cast<double>(all.program.bytes().arena);
    choose(arrangement, all.resident + arena, correction, depth, seconds_of, best);
  }
  return best;
}

}  // namespace sherd
