// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "plan/call_tracker.h"
#include "shard/runtime/pass.h"
#include "shard/runtime/runtime_parts.h"

namespace sherd {

/// Runs a forward, one at a time: from the units that the model enters and leaves to the program's
/// instructions.
class Forward {
 public:
  explicit Forward(RuntimeParts& parts);

  /// Begins a pass. `idle`: this rank has no data. Collective.
  void begin(bool train, bool idle);
  /// Enters a unit; returns the position of the call.
  int32_t enter(Unit& unit);
  /// Leaves the unit that was entered last. Returns whether it was the root's call.
  bool leave(Unit& unit);
  /// Issues what is left, for a rank without data.
  void run_rest();
  /// Ends the pass, and returns it. Collective.
  std::shared_ptr<Pass> end();
  /// Forgets a pass that failed.
  void reset() noexcept;

  const std::shared_ptr<Pass>& pass() const { return pass_; }
  /// The unit that was entered last and not left; null if there is none.
  const Unit* innermost() const { return open_.empty() ? nullptr : open_.back().unit; }

 private:
  /// A call that is under way.
  struct OpenCall {
    Unit* unit = nullptr;
    bool foreseen = true;
    std::vector<at::Tensor> buffers{};  // full parameters, of a call that was not foreseen
  };
  void skip(CallTracker::Range range);
  void enter_unforeseen(OpenCall& call);
  void leave_unforeseen(Unit& unit);
  void copy_parameters(const Unit& unit, int32_t position);
  void drop_copy(int32_t position);
  void look_while_waiting(const Instruction& instruction);
  void record_call(const Unit& unit);

  RuntimeParts& parts_;
  CallTracker calls_;
  std::shared_ptr<Pass> pass_;
  const Section* section_ = nullptr;
  std::vector<OpenCall> open_;
  int32_t calls_made_ = 0;  // in this forward, by the flight recorder's count
};

/// Makes a unit's parameters views of these full buffers, one for each group that is gathered.
void show_buffers(Unit& unit, const std::vector<at::Tensor>& buffers);

}  // namespace sherd
