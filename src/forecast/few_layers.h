// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "configuration/configuration.h"
#include "forecast/plan.h"
#include "forecast/rehearsal.h"
#include "forecast/search_space.h"
#include "sherd/models/language_model.h"

namespace sherd {

// Note [A model from a few of its layers]
// Where layers are alike, memory and time of a step grow by the same with each further layer, once
// there are so many that no gather, reduction or slot reaches from the first to the last. What two
// models with few layers need gives the rest by a straight line. Layers of different sizes, as in a
// hybrid, are placed in the arena differently for each number of them, and what waits for a slot
// with them: there all layers count. Sharding changes nothing in a dry run but axes and placements
// of groups, so one dry run serves all ways to shard: it depends on what ranks compute, which is
// the batch, the ranks that share sequences and experts, and what is recomputed.

/// Returns the value of train.recompute.
const char* to_text(Recompute mode);

/// Dry runs of a model with a few of its layers, each made once.
class FewLayers {
 public:
  /// The bytes of activations at the peak of a pass in which some of the layers are recomputed.
  struct Activations {
    double kept = 0;        ///< what a layer keeps that is not recomputed
    double recomputed = 0;  ///< what one keeps that is
    double rest_none = 0;   ///< what comes on top in a layer that is not recomputed
    double rest_some = 0;   ///< the same if others are
    double rest_all = 0;    ///< what comes on top in a layer that is recomputed
  };

  FewLayers(const Configuration& configuration, int64_t ranks, const PlanOptions& options);

  /// The layers of the smaller and the larger model; the same if all layers are needed.
  int64_t few() const { return few_; }
  int64_t more() const { return more_; }
  int64_t all() const { return configuration_.model.layers; }

  /// Returns the configuration with an arrangement's keys and some of its layers.
  Configuration configuration(
      const Arrangement& arrangement, int64_t layers, Recompute mode, int64_t recomputed = 0) const;
  /// Returns the dry run of an arrangement with `layers` layers, all of them (0) or the first
  /// `recomputed` recomputed; fully sharded over all ranks.
  const Rehearsal& dry_run_of(
      const Arrangement& arrangement, int64_t layers, Recompute mode, int64_t recomputed = 0);
  Activations activations(const Arrangement& arrangement, Recompute mode);
  /// Returns the peak with the first `recomputed` layers recomputed.
  double peak(const Activations& activations, int64_t recomputed) const;
  /// Returns a quantity for all layers, from those for few() and more().
  double extrapolated(double few, double more) const;

 private:
  Configuration with_layers(int64_t layers) const;

  Configuration configuration_;
  int64_t ranks_;
  c10::DeviceType target_;
  int64_t few_ = 0;
  int64_t more_ = 0;
  std::map<int64_t, std::vector<std::string>> keeps_;  ///< precision.keep, by the number of layers
  /// cp, tp, ep, batch, mode, recomputed layers, layers
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, Recompute, int64_t, int64_t>;
  std::map<Key, Rehearsal> rehearsals_;
};

}  // namespace sherd
