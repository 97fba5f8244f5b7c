// SPDX-License-Identifier: Apache-2.0
#include "forecast/few_layers.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>

#include "configuration/setup.h"
#include "forecast/run_costs.h"

namespace sherd {
namespace {

/// So many that the first gather and the last are apart, with the usual prefetch depth.
constexpr int64_t kLayersToScale = 8;

/// The number of layers after which they repeat; all of them, if they differ.
int64_t period_of(const ModelSection& model) {
  if (model.kind != "hybrid") return 1;
  const auto& letters = model.pattern;
  const bool alike = letters.find_first_not_of(letters.front()) == std::string::npos;
  return alike ? 1 : model.layers;
}

}  // namespace

const char* to_text(Recompute mode) {
  switch (mode) {
    case Recompute::none: return "none";
    case Recompute::full: return "full";
    case Recompute::selective: return "selective";
  }
  return "";
}

FewLayers::FewLayers(const Configuration& configuration, int64_t ranks, const PlanOptions& options)
    : configuration_(configuration), ranks_(ranks), target_(target_of(configuration, options)) {
  const int64_t all = configuration.model.layers;
  const int64_t step = std::lcm(period_of(configuration.model), 2);
  more_ = std::min(all, kLayersToScale);
  while ((all - more_) % step != 0) ++more_;
  few_ = more_ - step;
  if (few_ < 1) few_ = more_;
  for (const int64_t layers : {few_, more_}) {
    auto fewer = with_layers(layers);
    drop_keep_without_weights(fewer);
    keeps_[layers] = std::move(fewer.precision.keep);
  }
}

Configuration FewLayers::with_layers(int64_t layers) const {
  auto result = configuration_;
  if (layers != all()) result.model.from.reset();  // its keys are those of the folder
  result.model.layers = layers;
  return result;
}

double FewLayers::extrapolated(double few, double more) const {
  if (few_ == more_) return more;
  const auto slope = (more - few) / static_cast<double>(more_ - few_);
  return more + slope * static_cast<double>(all() - more_);
}

Configuration FewLayers::configuration(
    const Arrangement& arrangement, int64_t layers, Recompute mode, int64_t recomputed) const {
  auto result = arranged(with_layers(layers), arrangement);
  if (const auto keep = keeps_.find(layers); keep != keeps_.end()) {
    result.precision.keep = keep->second;
  }
  result.train.recompute = to_text(mode);
  result.train.recompute_layers = recomputed;
  return result;
}

const Rehearsal& FewLayers::dry_run_of(
    const Arrangement& arrangement, int64_t layers, Recompute mode, int64_t recomputed) {
  const Key key{arrangement.cp, arrangement.tp, arrangement.ep, arrangement.batch,
                mode,           recomputed,     layers};
  const auto found = rehearsals_.find(key);
  if (found != rehearsals_.end()) return found->second;
  auto sharded = configuration(arrangement, layers, mode, recomputed);
  sharded.shard.strategy = "optim_grads_params";
  sharded.shard.outer = 1;
  sharded.shard.outer_strategy = "no_shard";
  sharded.shard.expert_strategy.reset();
  sharded.shard.expert_outer_strategy.reset();
  return rehearsals_.emplace(key, dry_run(sharded, ranks_, target_)).first->second;
}

FewLayers::Activations FewLayers::activations(const Arrangement& arrangement, Recompute mode) {
  const auto peak_of = [&](int64_t layers, Recompute way, int64_t recomputed) {
    return static_cast<double>(dry_run_of(arrangement, layers, way, recomputed).activations);
  };
  const auto per_layer = [&](Recompute way) {
    if (few_ == more_) return 0.0;
    return (peak_of(more_, way, 0) - peak_of(few_, way, 0)) / static_cast<double>(more_ - few_);
  };
  const auto count = static_cast<double>(more_);
  Activations result;
  if (few_ == more_ && more_ > 2 && mode != Recompute::none) {
    // Between one layer that is recomputed and all but one.
    const double one = peak_of(more_, mode, 1);
    result.kept = std::max(0.0, (one - peak_of(more_, mode, more_ - 1)) / (count - 2));
    result.rest_none = peak_of(more_, Recompute::none, 0) - count * result.kept;
    result.rest_all = peak_of(more_, mode, 0);
    result.rest_some = one - (count - 1) * result.kept;
    return result;
  }
  result.kept = per_layer(Recompute::none);
  result.rest_none = peak_of(more_, Recompute::none, 0) - count * result.kept;
  if (mode == Recompute::none) return result;
  result.recomputed = per_layer(mode);
  result.rest_all = peak_of(more_, mode, 0) - count * result.recomputed;
  result.rest_some = result.rest_all;
  if (more_ > 1) {
    result.rest_some = peak_of(more_, mode, 1) - (count - 1) * result.kept - result.recomputed;
  }
  return result;
}

/// See Note [Activations between two rehearsals] in budget.cpp: the peak is in one of the layers
/// that are recomputed, or in one of the others.
double FewLayers::peak(const Activations& activations, int64_t recomputed) const {
  const auto first = static_cast<double>(recomputed);
  const auto others = static_cast<double>(all() - recomputed);
  if (recomputed == 0) return activations.rest_none + others * activations.kept;
  const double in_first = activations.rest_all + first * activations.recomputed;
  if (others == 0) return in_first;
  return std::max(
      in_first, activations.rest_some + first * activations.recomputed + others * activations.kept);
}

}  // namespace sherd
