// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "configuration/configuration.h"
#include "forecast/few_layers.h"
#include "forecast/plan.h"
#include "forecast/run_costs.h"
#include "forecast/search_space.h"

namespace sherd {

/// What an arrangement needs, and the choices of prefetch depth and recomputation behind it.
struct Estimate {
  bool fits = false;
  int64_t bytes = 0;   ///< of a rank; if nothing fits, the least
  double seconds = 0;  ///< of a step; only if it fits
  int64_t prefetch = 0;
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = 0;  ///< 0: all, or none
};

// Note [Programs of other axis sizes]
// Arrangements with the same strategies have the same program but for the bytes of collectives over
// the outer axis, and the sizes of shards. So for a rough estimate one program serves them all: its
// collectives are priced with links on which they take as long as those of the arrangement. That
// program has few layers, too. With a prefetch depth of one, what it waits for alternates between
// two values with the number of layers, so that the number must be odd or even as that of all.

/// Estimates plans of many arrangements of a model.
class ScaledPlans {
 public:
  /// `memory`: most bytes of a rank. `options` have a network with the speed of a device.
  ScaledPlans(
      const Configuration& configuration,
      int64_t ranks,
      const PlanOptions& options,
      int64_t memory);

  /// Returns a lower bound of an arrangement's bytes, the same for each batch: weights, gradients
  /// and moments.
  int64_t resident(const Arrangement& arrangement);
  /// Returns the shortest step that fits with a prefetch depth of one and any recomputation, or the
  /// least bytes, from few layers and from the programs of arrangements like it.
  Estimate rough(const Arrangement& arrangement);
  /// Returns the same with any prefetch depth and all layers. `correction`: bytes that a plan was
  /// found to need beyond the estimate.
  Estimate close(const Arrangement& arrangement, int64_t correction = 0);

 private:
  /// The program of an arrangement.
  struct Skeleton {
    Arrangement of;
    Program program;
    double resident = 0;  ///< bytes, all but activations and arena
    double parts = 0;     ///< those of them that depend on the shards
  };
  /// Programs with few and more layers, or twice one with all.
  struct Skeletons {
    const Skeleton& few;
    const Skeleton& more;
  };
  using SkeletonKey =
      std::tuple<int64_t, int64_t, int64_t, Strategy, Strategy, bool, bool, bool, int64_t, int64_t>;
  using CostsKey = std::tuple<int64_t, int64_t, int64_t, int64_t, Recompute, int64_t>;
  using AxesKey = std::tuple<int64_t, int64_t, int64_t, int64_t>;

  Skeleton skeleton(const Arrangement& arrangement, int64_t layers, int64_t depth, int64_t passes);
  Skeletons shared_skeletons(const Arrangement& arrangement, int64_t passes);
  Network network_for(const Arrangement& arrangement, const Arrangement& of);
  const Network& network_of_axes(const Arrangement& arrangement);
  Costs& costs(const Arrangement& arrangement, int64_t layers, Recompute mode);
  double seconds(
      const Arrangement& arrangement, const Skeleton& skeleton, int64_t layers, Recompute mode);
  double resident_of(const Arrangement& arrangement, const Skeleton& skeleton, int64_t layers);
  template <class Seconds>
  void choose(
      const Arrangement& arrangement,
      double others,
      int64_t correction,
      int64_t depth,
      const Seconds& seconds,
      Estimate& best);

  int64_t ranks_;
  PlanOptions options_;
  int64_t memory_;
  c10::DeviceType target_;
  Configuration configuration_;
  FewLayers few_layers_;
  std::map<SkeletonKey, Skeleton> skeletons_;
  std::map<CostsKey, Costs> costs_;
  std::map<AxesKey, Network> networks_;
};

}  // namespace sherd
