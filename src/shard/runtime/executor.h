// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

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

  /// Called before the compute stream waits for the parameters of a unit: the host has time to look
  /// what other ranks do.
  void set_before_wait(std::function<void(const Instruction&)> function) {
    before_wait_ = std::move(function);
  }

  /// Issues what the section has for the boundary.
  void run(const Section& section, const Boundary& boundary);
  /// Gathers a unit that the program does not expect here, at once, into memory of its own: its
  /// slot may be another's at this time. `refresh`: the model weights are older than the main ones.
  /// One buffer for each group that is gathered. Blocks.
  std::vector<at::Tensor> gather_now(const Unit& unit, bool refresh);
  /// Number of collectives that were issued so far, where groups gathered by gather_now() count as
  /// one each. Ranks compare it after a failure.
  int64_t issued() const { return issued_; }

  /// Frees what eager memory holds of gradients. Nothing may be under way.
  void free_gradients();
  /// Forgets it: the groups were bound anew.
  void forget_gradients() { reducing_.clear(); }

 private:
  void issue(const Instruction& instruction);
  void issue_on_compute(const Instruction& instruction);
  void run_on_compute(const Instruction& instruction);
  void allocate_parameters(const Instruction& instruction);
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
};

}  // namespace sherd
