// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "comm/flight/flight_ring.h"
#include "shard/diagnostics/watch.h"
#include "shard/runtime/bound_program.h"
#include "shard/runtime/model_units.h"
#include "shard/runtime/step_state.h"

namespace sherd {

/// Issues the instructions of a program on its streams.
class Executor {
 public:
  Executor(
      const World& world,
      const ModelUnits& units,
      const StepState& state,
      BoundProgram& program,
      Watch& watch)
      : world_(world), units_(units), state_(state), program_(program), watch_(watch) {}

  /// Called before the compute stream waits for the parameters of a unit: the host has time to see
  /// what other ranks do.
  void set_before_wait(std::function<void(const Instruction&)> function) {
    before_wait_ = std::move(function);
  }

  /// From now on the boundaries of this section are run, in order.
  void begin(const Section& section);
  /// Issues what the section has for the boundary.
  void run(const Boundary& boundary);
  /// Gathers a unit that the program does not expect here, at once, into memory of its own: its
  /// slot may be another's at this time. `refresh`: the model weights are older than the main ones.
  /// One buffer for each group that is gathered. Blocks.
  std::vector<at::Tensor> gather_now(const Unit& unit, bool refresh);
  /// Number of collectives that were issued so far, where groups gathered by gather_now() count as
  /// one each. Ranks compare it after a failure.
  int64_t issued() const { return issued_; }
  /// Number of collectives that were issued outside the present section: before it, or by
  /// gather_now().
  int64_t issued_outside() const { return issued_ - issued_inside_; }
  /// The name of the present section.
  std::string section() const { return section_ ? section_->name : "none"; }
  /// After a failure: issues what the section has next, as a rank without data does, until that
  /// many collectives were issued by this rank. Others have issued as many in the same section.
  /// Blocks.
  void catch_up(int64_t issued);

  /// Frees what eager memory holds of gradients. Nothing may be under way.
  void free_gradients();
  /// Forgets gradients and section: the groups were bound anew, to another program.
  void forget();

 private:
  void issue_next();
  void issue_beside_compute(const Instruction& instruction);
  void issue_on_compute(const Instruction& instruction);
  uint64_t record_flight(const Instruction& instruction, flight::State state) const;
  void run_on_compute(const Instruction& instruction);
  void allocate_parameters(const Instruction& instruction);
  void allocate_transposed(const Instruction& instruction);
  void allocate_gradients(Unit& unit);
  void free_oldest_gradients();
  void complete_gradients(Unit& unit);
  Watch::Moment moment() const;

  World world_;
  const ModelUnits& units_;
  const StepState& state_;
  BoundProgram& program_;
  Watch& watch_;
  std::function<void(const Instruction&)> before_wait_;
  std::deque<Unit*> reducing_;  // eager: whose full gradients are not freed yet
  int64_t issued_ = 0;
  const Section* section_ = nullptr;  // the present one,
  size_t next_ = 0;                   // its instruction that is issued next,
  int64_t issued_inside_ = 0;         // and its collectives that were issued
};

}  // namespace sherd
