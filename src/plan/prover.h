// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/happens_before.h"
#include "plan/proof.h"
#include "plan/slot_owners.h"

namespace sherd {

/// Follows a sequence of sections, instruction by instruction, and refuses the first that is wrong.
class Prover {
 public:
  explicit Prover(const Program& program);
  std::optional<Refusal> run(const Sequence& sequence);

 private:
  /// The state of a group's gradients since the last update.
  struct GradientState {
    int contributions = 0;    // passes that reached the main gradient
    bool pending = false;     // this pass's gradients lie in the slot, not yet in the main gradient
    bool reduced = false;     // in the slot: over the inner axis
    bool sent = false;        // in the slot: over the outer axis
    int32_t staged = kNone;   // the slot of its copy in the reduce dtype
    bool inner_done = false;  // of the main gradient
    bool divided = false;
    bool outer_done = false;
  };
  struct GroupState {
    Resource weight;
    Resource main_gradient;
    GradientState gradient;
    int64_t version = 0;          // of the model weight at rest
    int64_t outer_version = 0;    // of its part over the outer axis
    bool gathered = false;        // the slot holds the full parameters
    bool gathered_outer = false;  // first half of a gather over both axes
    bool two_ways = false;        // what was gathered has both encodings
    int64_t transposed = kNone;   // version of the transposed copies; kNone: there are none
    bool exchanged_inner = true;  // the scales belong to the newest main weights, over the inner
    bool exchanged_outer = true;  // and the outer axis
  };
  struct UnitState {
    std::vector<GroupState> groups;
    int calls = 0;        // in a pass
    int64_t version = 0;  // of what was gathered
    bool live = false;
    bool ready = false;     // waited for
    bool consumed = false;  // computed with, since the gather
    bool opened = false;    // owns its gradient slot
    bool complete = false;  // its gradients of this section are reduced or being so
    int computed = 0;       // how often, in this section
  };

  void check(const Instruction& instruction);
  void count_calls(const CallOrder& order);
  void begin_section();
  void end_section() const;

  // ---- parameters (prover.cpp) -----------------------------------------------------------------
  void refresh(const Instruction& instruction);
  void gather(const Instruction& instruction);
  void transpose(const Instruction& instruction);
  void wait(const Instruction& instruction);
  void compute(const Instruction& instruction);
  void read_transposed(const Instruction& instruction);
  void release(const Instruction& instruction);
  void release_transposed(int32_t unit);
  void update();
  void exchange(const Instruction& instruction);
  void publish();

  // ---- gradients (prover_gradients.cpp) --------------------------------------------------------
  void write_gradients(int32_t number);
  void open(const Instruction& instruction);
  static bool in_turn(const GradientState& gradient, bool inner);
  void stage(const Instruction& instruction);
  void reduce(const Instruction& instruction);
  void reduce_in_slot(const Instruction& instruction);
  void accumulate(const Instruction& instruction);
  void accumulate_slot(const Instruction& instruction);
  void close_slot(int32_t number);
  void check_complete(const GroupSpec& group, const GradientState& gradient) const;

  // ---- accesses --------------------------------------------------------------------------------
  void require_slot(const Instruction& instruction, int32_t expected) const;
  void read_weight(int32_t unit, size_t group);
  void write_weight(int32_t unit, size_t group);
  void read_gradient(int32_t unit, size_t group);
  void write_gradient(int32_t unit, size_t group);
  std::string of(const char* what, int32_t unit, size_t group) const;

  const UnitSpec& spec(int32_t unit) const { return program_.units()[index(unit)]; }
  UnitState& state(int32_t unit) { return units_[index(unit)]; }

  const Program& program_;
  const Section* section_ = nullptr;
  HappensBefore order_;
  SlotOwners slots_;
  std::vector<UnitState> units_;
  int64_t main_version_ = 0;
  int64_t published_ = 0;
  int passes_ = 0;  // backwards since the update
};

}  // namespace sherd
