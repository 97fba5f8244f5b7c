// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/fp8/encode_weights.h"
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
  int64_t transposed = kNone;
  int64_t gradients = kNone;
  int64_t stage_reduce = kNone;
  int64_t stage_outer = kNone;
};

/// The instructions of a group: gather, refresh, transpose, reduce, stage and accumulate, prepared
/// once for the addresses of a program, so that a step only issues them.
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
  const GroupCommunicators& communicators() const { return communicators_; }

  // ---- slots -------------------------------------------------------------------------------

  /// Returns the slot of the full parameters as bytes; undefined where there is none now.
  const at::Tensor& parameter_slot() const { return parameter_slot_; }
  /// Returns the full parameters in the slot, or in the model weight if that is not sharded: typed,
  /// as GroupLayout::model_buffers() lists them.
  std::vector<at::Tensor> full_parameters() const;
  /// Returns the transposed copies in their slot, typed; none where there is no slot now.
  const std::vector<at::Tensor>& transposed_copies() const { return transposed_; }
  // With eager memory; without it these six do nothing.
  void allocate_parameter_slot();
  void free_parameter_slot();
  void allocate_transposed_slot();
  void free_transposed_slot();
  void allocate_gradient_slot();
  void free_gradient_slot();
  /// Returns the bytes of the slots that were allocated here.
  int64_t eager_bytes() const;

  // ---- instructions: asynchronous on `stream`, or kernels on the current stream -------------

  /// All-gathers updated elements into model weights of which ranks hold a larger part than they
  /// update (ZeRO-1 and 2).
  Work refresh(AxisKind axis, Communicator::OnStream stream) const;
  /// All-gathers the parameters into their slot; fp8: with `two_ways` in both encodings.
  Work gather(AxisKind axis, bool two_ways, Communicator::OnStream stream) const;
  /// fp8: writes the transposed copies of the full parameters to their slot.
  void transpose() const;
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
  /// Returns the bytes of the full parameters in memory of their own.
  at::Tensor gather_now() const;

 private:
  struct Accumulation {
    std::vector<CastCopy> copies;
    CastCopyKind kind;
  };
  at::Tensor arena_view(int64_t offset, Part part, c10::ScalarType dtype) const;
  at::Tensor allocate_slot(int64_t bytes) const;
  std::vector<PartBuffer> slot_buffers(const std::vector<at::Tensor>& full) const;
  void prepare_parameters();
  void prepare_transpositions();
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
  at::Tensor parameter_slot_;           // bytes
  std::vector<at::Tensor> parameters_;  // in it, typed
  at::Tensor transposed_slot_;
  std::vector<at::Tensor> transposed_;
  at::Tensor gradient_slot_;  // full gradients, where they are sharded

  PerAxis<std::vector<Transfer>> refresh_;
  PerAxis<std::vector<Transfer>> gather_;
  PerAxis<std::vector<Transfer>> gather_two_ways_;
  std::vector<Transposition> transpositions_;        // of values
  std::vector<Transposition> scale_transpositions_;  // of scales that are gathered
  PerAxis<std::vector<Transfer>> reduce_scatter_;
  PerAxis<std::vector<at::Tensor>> all_reduce_;
  PerAxis<std::vector<CastCopy>> stage_;
  PerAxis<Accumulation> accumulate_;
};

}  // namespace sherd
