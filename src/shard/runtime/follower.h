// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "comm/long_wait.h"
#include "plan/call_tracker.h"
#include "shard/diagnostics/watch.h"
#include "shard/rank_records.h"
#include "shard/runtime/bound_program.h"
#include "shard/runtime/executor.h"
#include "shard/runtime/model_units.h"
#include "shard/runtime/step_state.h"

namespace sherd {

// Note [Following]
// A rank without data runs the program, but the others may call units that the program does not
// expect, and need its shards for that. So it follows: it joins each of their records, whatever it
// says, takes part in the gathers of unforeseen units, and goes on to what comes next on all ranks,
// a new order or the backward. These gathers run on the communicators of reductions, which the
// forward does not use: on those of gathers this rank may be ahead of the others. If the others go
// on after an exception, it has joined their recovery, and throws: its own recover() comes next.

/// What a rank without data (sherd::idle_pass) does beside the program.
class Follower {
 public:
  Follower(
      const World& world,
      const ModelUnits& units,
      const StepState& state,
      const BoundProgram& program,
      Executor& executor,
      RankRecords& records,
      Watch& watch);

  /// A pass begins in which this rank has no data (`idle`), and others may have (`follows`).
  void begin(bool idle, bool follows);
  bool is_idle() const { return idle_; }
  /// Takes part in what the others do beside the program, as far as it is known or, with `block`,
  /// until it is known what they do next. `order_known`: see OrderAgreement.
  void follow(CallTracker& calls, bool order_known, bool block);
  /// In a forward on CPU: follows until the events have happened. On CUDA the host does not wait
  /// for events.
  template <class Follow>
  void follow_until(const std::vector<int32_t>& events, const Follow& follow) {
    LongWait wait;
    while (follows_ && state_.phase() == StepState::Phase::forward &&
           !program_.streams().have_happened(events)) {
      follow();
      wait.pause();
    }
  }
  /// What the others do next, if this rank knows it; then it is forgotten.
  std::optional<RankRecords::Record> take_followed() {
    return std::exchange(followed_, std::nullopt);
  }

 private:
  World world_;
  const ModelUnits& units_;
  const StepState& state_;
  const BoundProgram& program_;
  Executor& executor_;
  RankRecords& records_;
  Watch& watch_;
  bool idle_ = false;
  bool follows_ = false;
  std::optional<RankRecords::Record> followed_;
};

}  // namespace sherd
