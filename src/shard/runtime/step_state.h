// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

/// Where a model is in its step: which pass is under way, how many backwards are done, which
/// weights it computes with. Counters and flags alone, so every transition can be tested without a
/// device. begin_forward(), end_forward(), begin_backward(), end_backward() and recover() throw
/// std::logic_error in the wrong phase; the other functions do not check it.
///
///   resting -> forward -> resting        begin_forward, end_forward
///   resting -> backward -> resting       begin_backward, end_backward
///   forward, backward -> failed          fail
///   failed -> resting                    recover
class StepState {
 public:
  enum class Phase : uint8_t { resting, forward, backward, failed };

  Phase phase() const { return phase_; }
  /// No pass is under way. The last one may have failed.
  bool is_between_passes() const { return phase_ == Phase::resting || phase_ == Phase::failed; }
  bool has_failed() const { return phase_ == Phase::failed; }

  // ---- passes ------------------------------------------------------------------------------

  /// The kind of the forward that begins now.
  ForwardFlags forward_flags(bool train) const {
    return {weights_changed_, train, still_gathered_};
  }
  void begin_forward();
  void end_forward();
  /// The forward that has ended has refreshed the model weights and, if it trains, left
  /// keep_gathered units gathered.
  void note_gathered(bool train);
  /// Sets the kind of the backward that begins next; `trains`: it brings gradients to parameters.
  /// One that does not is not counted as one of the step's.
  void set_backward(bool trains);
  const BackwardFlags& backward_flags() const { return backward_flags_; }
  bool trains() const { return trains_; }
  void begin_backward();
  void end_backward();
  /// Counts the backward that has ended.
  void count_backward();
  /// An exception ended the pass, if one is under way. Returns whether one was.
  bool fail() noexcept;
  /// All ranks know of the failure and go on.
  void recover();
  /// A backward that failed has left gradients of the step incomplete; until recover().
  bool has_incomplete_gradients() const { return incomplete_gradients_; }
  /// Numbers the passes of a step that communicate, from 1.
  int64_t next_pass() { return ++passes_; }
  int64_t passes() const { return passes_; }  ///< the number of the last one

  // ---- the step ----------------------------------------------------------------------------

  int64_t step() const { return step_; }  ///< steps that are done
  int64_t micro_batches() const { return micro_batches_; }
  void set_micro_batches(int64_t count) { micro_batches_ = planned_micro_batches_ = count; }
  /// Of each step, unless it goes on: what programs are built for.
  int64_t planned_micro_batches() const { return planned_micro_batches_; }
  /// This step gets another backward after its last one.
  void go_on() { micro_batches_ = backwards_done_ + 1; }
  int64_t backwards_done() const { return backwards_done_; }
  bool is_between_steps() const { return backwards_done_ == 0 || has_all_backwards(); }
  bool has_all_backwards() const { return backwards_done_ == micro_batches_; }
  /// The gradients of the step were divided by its tokens.
  bool is_divided() const { return divided_; }
  void set_divided() { divided_ = true; }
  /// The update is done and published: the next step begins.
  void end_step();
  /// The gradients of the step are dropped: it begins again.
  void drop_backwards();
  /// What was published was no step.
  void undo_step() { --step_; }

  // ---- weights -----------------------------------------------------------------------------

  /// Changes with the weights: a backward must see the one of its forward.
  int64_t weight_version() const { return weight_version_; }
  /// Weights were written, on all ranks alike: nothing has to be sent.
  void note_edit();
  /// Model weights were encoded, each rank its own part: those of other ranks are not here yet.
  void note_encoded() { weights_changed_ = true; }
  /// No unit is gathered any more.
  void note_released() { still_gathered_ = false; }

  // ---- graphs ------------------------------------------------------------------------------

  /// Each replay comes after an update.
  void begin_capture();
  /// The host has gone through a step that the device has not made.
  void end_capture();
  /// The device has made a step.
  void note_replay();

  /// For each parameter that was trainable when it was sharded: whether it was frozen when the last
  /// backward began.
  std::vector<bool> frozen;

 private:
  void expect(Phase phase, const char* transition) const;

  Phase phase_ = Phase::resting;
  int64_t step_ = 0;
  int64_t micro_batches_ = 1;
  int64_t planned_micro_batches_ = 1;
  int64_t backwards_done_ = 0;
  int64_t passes_ = 0;
  int64_t weight_version_ = 0;
  bool weights_changed_ = false;  // since the last pass: other ranks' updates are not here yet
  bool still_gathered_ = false;   // keep_gathered units are gathered
  bool divided_ = false;
  bool incomplete_gradients_ = false;
  bool trains_ = true;
  BackwardFlags backward_flags_;
};

}  // namespace sherd
