// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shard/runtime/pass.h"
#include "shard/runtime/runtime_parts.h"
#include "sherd/shard/boundary.h"

namespace sherd {

/// Runs a backward, one at a time: from the gradients that arrive at the units' outputs to the
/// program's instructions.
class Backward {
 public:
  explicit Backward(RuntimeParts& parts) : parts_(parts) {}

  /// Begins the backward of a pass. Throws, naming the remedy, if it is one too many or its
  /// forward's weights or program are gone. Collective.
  void begin(const std::shared_ptr<Pass>& pass);
  /// Whether the backward of this pass is under way.
  bool is_of(const std::shared_ptr<Pass>& pass) const;
  /// Gathers the unit at this position of the pass again, and makes room for its gradients.
  /// Returns whether that was still to do.
  bool enter(int32_t position);
  /// The same, for a call that is recomputed first.
  void enter_recompute(int32_t position);
  /// Starts the reductions up to this call's.
  void leave(int32_t position);
  /// Issues what is left. Returns the pass.
  std::shared_ptr<Pass> finish();
  /// Forgets a pass that failed, while it is under way.
  void reset() noexcept;

  /// Whether a function that writes a parameter's gradient itself may do so now: in a backward
  /// with `inputs` autograd decides which gradients are wanted.
  bool takes_all_gradients() const { return !partial_; }

 private:
  size_t in_program(int32_t position) const {
    return static_cast<size_t>(pass_->position_in_program(position));
  }
  bool run_until(int32_t boundary);
  void set_frozen(std::vector<bool> frozen) noexcept;

  RuntimeParts& parts_;
  std::shared_ptr<Pass> pass_;
  const Section* section_ = nullptr;
  size_t cursor_ = 0;                // the next boundary
  bool partial_ = false;             // autograd was asked for some gradients only
  std::vector<bool> frozen_before_;  // StepState::frozen, if the pass fails
};

}  // namespace sherd
