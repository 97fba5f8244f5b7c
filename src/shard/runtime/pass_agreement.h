// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shard/diagnostics/watch.h"
#include "shard/parameter_shards.h"
#include "shard/rank_records.h"
#include "shard/runtime/bound_program.h"
#include "shard/runtime/executor.h"
#include "shard/runtime/graph_state.h"
#include "shard/runtime/model_units.h"
#include "shard/runtime/pass.h"
#include "shard/runtime/step_state.h"

namespace sherd {

/// Whether a section has instructions on a stream other than compute.
bool communicates(const Section& section);

/// The points of a step at which the ranks of a model compare what they do. Each throws an error
/// that names two ranks and what they do if that differs.
class PassAgreement {
 public:
  /// Collective.
  PassAgreement(
      const World& world,
      const ModelUnits& units,
      const std::vector<ParameterShard>& shards,
      StepState& state,
      const GraphState& graph,
      const BoundProgram& program,
      Watch& watch);

  /// Starts the comparison for a pass. All ranks begin the same passes in the same order; otherwise
  /// one rank's record meets the record of another pass. `what` is for the error. `followed`: this
  /// rank has no data and knows from the others that they begin this one.
  void begin_pass(
      const char* what,
      int64_t flags,
      const Section& section,
      const Pass& pass,
      const std::optional<RankRecords::Record>& followed);
  /// A unit is called where the program does not expect it.
  void call_unforeseen(const Unit& unit, int64_t issued);
  /// All backwards of the step are done, and the update begins.
  void begin_update(const char* caller);
  /// After an exception all ranks must be in the same section. Returns how many collectives the
  /// rank that came furthest has issued: the others must issue as many before they go on, or the
  /// next ones would be taken for each other. On CUDA all must have issued as many already.
  int64_t recover(const Executor& executor);

  /// Waits for the last record, and throws on all ranks if theirs differ. On CPU it is called
  /// before a unit's parameters are used: a gather can't end before all ranks have come this far,
  /// so waiting costs nothing, and a difference is found before anything is computed from it. On
  /// CUDA it is called at the end of a pass.
  void await_record();
  /// The program is known to be the same on all ranks, or is another from now on.
  void set_program_agreed(bool agreed) { program_agreed_ = agreed; }
  bool is_program_agreed() const { return program_agreed_; }

  /// Keeps in mind whether a rank has found something in its gradients.
  void note_findings() { report_due_ = records_.take_findings_flag() || report_due_; }
  bool is_report_due() const { return report_due_; }
  void set_reported() { report_due_ = false; }

  RankRecords& records() { return records_; }
  const RankRecords& records() const { return records_; }

 private:
  World world_;
  const ModelUnits& units_;
  const std::vector<ParameterShard>& shards_;
  StepState& state_;
  const GraphState& graph_;
  const BoundProgram& program_;
  Watch& watch_;
  RankRecords records_;
  bool program_agreed_ = false;
  bool report_due_ = false;
};

}  // namespace sherd
