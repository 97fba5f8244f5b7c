// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "shard/group/gradient_inbox.h"
#include "shard/group/group_layout.h"
#include "shard/group/group_storage.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// The communicators of a group over its two axes, for gathers and for reductions.
struct GroupCommunicators {
  PerAxis<Communicator*> gather{};
  PerAxis<Communicator*> reduce{};
};

/// The byte offsets in the arena that a program gives to a group; kNone: it needs no such slot.
struct GroupAddresses {
  at::Tensor arena;    ///< bytes
  bool eager = false;  ///< slots of parameters and gradients are allocated when they are needed
  int64_t parameters = kNone;
  int64_t gradients = kNone;
  int64_t stage_reduce = kNone;
  int64_t stage_outer = kNone;
};

/// The instructions of a group: gather, refresh, reduce, stage and accumulate, prepared once for
/// the addresses of a program, so that a step only issues them.
class GroupTransfers {
 public:
  GroupTransfers(const GroupLayout& layout, GroupStorage& storage, GradientInbox& inbox)
      : layout_(layout), storage_(storage), inbox_(inbox) {}
  GroupTransfers(const GroupTransfers&) = delete;
  GroupTransfers& operator=(const GroupTransfers&) = delete;

  /// Prepares all instructions for the given addresses. `divisor`: of reduced gradients.
  void bind(
      const GroupAddresses& addresses, const GroupCommunicators& communicators, double divisor);
  /// Drops all references to the arena.
  void unbind();

  // ---- slots -------------------------------------------------------------------------------

  /// Returns the slot of the full parameters; undefined where there is none now.
  const at::Tensor& parameter_slot() const { return parameter_slot_; }
  // With eager memory; without it these four do nothing.
  void allocate_parameter_slot();
  void free_parameter_slot();
  void allocate_gradient_slot();
  void free_gradient_slot();
  /// Returns the bytes of the slots that were allocated here.
  int64_t eager_bytes() const;

  // ---- instructions: asynchronous on `stream`, or kernels on the current stream -------------

  /// All-gathers updated elements into model weights of which ranks hold a larger part than they
  /// update (ZeRO-1 and 2).
  Work refresh(AxisKind axis, Communicator::OnStream stream) const;
  /// All-gathers the parameters into their slot.
  Work gather(AxisKind axis, Communicator::OnStream stream) const;
  /// Reduces gradients in place: reduce-scatter if `scatter`, otherwise all-reduce.
  Work reduce(AxisKind axis, bool scatter, Communicator::OnStream stream) const;
  /// Copies main gradients to where they are reduced in another dtype.
  void stage(AxisKind axis) const;
  /// Divides reduced gradients and writes them to the main gradient, or adds them.
  void accumulate(AxisKind axis, bool overwrite) const;
  /// Returns whether the last micro-batch accumulates again after accumulate(axis).
  bool accumulates_after(AxisKind axis) const;

  // ---- outside the program: blocking the host, collective -----------------------------------

  void refresh_now() const;
  /// Returns the full parameters in memory of their own.
  at::Tensor gather_now() const;

 private:
  struct Accumulation {
    std::vector<CastCopy> copies;
    CastCopyKind kind;
  };
  at::Tensor arena_view(int64_t offset, Part part, c10::ScalarType dtype) const;
  at::Tensor allocate_slot(c10::ScalarType dtype) const;
  void prepare_parameters();
  void prepare_gradients();
  void prepare_sharded_gradients();
  void prepare_replicated_gradients();
  void prepare_outer_gradients();

  const GroupLayout& layout_;
  GroupStorage& storage_;
  GradientInbox& inbox_;

  GroupAddresses addresses_;
  GroupCommunicators communicators_;
  double divisor_ = 1;
  at::Tensor parameter_slot_;
  at::Tensor gradient_slot_;  // full gradients, where they are sharded

  PerAxis<std::vector<Transfer>> refresh_;
  PerAxis<std::vector<Transfer>> gather_;
  PerAxis<std::vector<Transfer>> reduce_scatter_;
  PerAxis<std::vector<at::Tensor>> all_reduce_;
  PerAxis<std::vector<CastCopy>> stage_;
  PerAxis<Accumulation> accumulate_;
};

}  // namespace sherd
