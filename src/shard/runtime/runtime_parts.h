// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "shard/cut_agreement.h"
#include "shard/diagnostics/watch.h"
#include "shard/parameter_shards.h"
#include "shard/runtime/abandonment.h"
#include "shard/runtime/bound_program.h"
#include "shard/runtime/encoded_weights.h"
#include "shard/runtime/exchange_tracker.h"
#include "shard/runtime/executor.h"
#include "shard/runtime/follower.h"
#include "shard/runtime/graph_state.h"
#include "shard/runtime/model_units.h"
#include "shard/runtime/order_agreement.h"
#include "shard/runtime/pass_agreement.h"
#include "shard/runtime/published_weights.h"
#include "shard/runtime/step_state.h"

namespace sherd {

/// What the forward, the backward and the step of a model share. Each part is given those above it
/// that it needs.
struct RuntimeParts {
  /// Builds the first program. Collective.
  explicit RuntimeParts(Unit& root);
  RuntimeParts(const RuntimeParts&) = delete;
  RuntimeParts& operator=(const RuntimeParts&) = delete;

  World world;
  ModelUnits units;
  std::vector<ParameterShard> shards;  ///< of all parameters; none once a unit was deleted
  StepState state;
  GraphState graph;
  Watch watch;
  BoundProgram program;
  Executor executor;
  PassAgreement agreement;
  OrderAgreement orders;
  Abandonment abandonment;
  ExchangeTracker exchanges;
  Follower follower;
  PublishedWeights weights;
  EncodedWeights encoded;

  /// From now on this program runs. Waits for what is under way.
  void use(const std::shared_ptr<const Program>& next);
  /// Throws if an optimizer has written main weights that are not published.
  void check_published() const;
  /// Encodes fp8 weights whose main weights were given other values since. The next gathers wait
  /// for it. Collective if there are any.
  void encode_stale_weights();
  /// Writes to the flight recorder that a section begins.
  void record_section(const Section& section) const;
};

}  // namespace sherd
