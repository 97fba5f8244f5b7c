// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "plan/call_tracker.h"
#include "shard/rank_records.h"
#include "shard/runtime/graph_state.h"
#include "shard/runtime/model_units.h"
#include "shard/runtime/pass.h"
#include "shard/runtime/step_state.h"
#include "sherd/plan/program.h"

namespace sherd {

/// How ranks that may call different units make one order of it, and the program of that order.
class OrderAgreement {
 public:
  OrderAgreement(
      const ModelUnits& units,
      const StepState& state,
      const GraphState& graph,
      RankRecords& records)
      : units_(units), state_(state), graph_(graph), records_(records) {}

  /// The program of the next forward; a backward has its forward's.
  const std::shared_ptr<const Program>& next() const { return next_; }
  /// A training pass was made, and all ranks know its order.
  bool is_known() const { return known_; }

  /// Builds the next program for the order. Throws if a graph has the present one's addresses.
  void build(CallOrder order);
  /// Ends a pass that was the first to train, or went another way than the program: the ranks agree
  /// on one order. Returns whether next() is another program now, which the pass then belongs to.
  /// `idle`: this rank has no data; `has_followed`: it knows from the others that they agree now.
  /// Collective.
  bool adopt(Pass& pass, const CallTracker& calls, int64_t issued, bool idle, bool has_followed);
  /// A rank has recomputed units together that the program takes one by one, from copies of their
  /// parameters. Returns whether next() has a program for it now. Collective.
  bool adopt_recomputes(const Pass& pass);
  /// A rank has recorded exchanges of activations in a pass, backward included, that the program
  /// does not know: from now on it does. The first rank that has made a call says what its
  /// exchanges are: their sizes may differ from rank to rank. Returns whether next() has them now.
  /// Collective.
  bool adopt_exchanges(const Pass& pass);

 private:
  void check_recomputes(
      const CallOrder& order, const CallMarks& marks, const CallMarks& mine) const;
  std::string to_text(const CallOrder& order) const;
  std::vector<CallExchanges> exchanges_of_all(const Pass& pass);

  const ModelUnits& units_;
  const StepState& state_;
  const GraphState& graph_;
  RankRecords& records_;
  std::shared_ptr<const Program> next_;
  std::optional<CallOrder> evaluation_;  // of passes without gradients, if that is another
  bool known_ = false;
};

}  // namespace sherd
