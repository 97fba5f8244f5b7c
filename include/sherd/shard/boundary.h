// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "sherd/export.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

class Unit;
struct Pass;

/// The autocast settings of one thread.
struct AutocastState {
  bool cpu = false;   ///< autocast is enabled for CPU tensors
  bool cuda = false;  ///< autocast is enabled for CUDA tensors
  c10::ScalarType cpu_dtype{};
  c10::ScalarType cuda_dtype{};
  bool cache = true;  ///< autocast caches its casts of weights
};

/// A handle to one call of a unit: before_forward() returns it, and the call's backward uses it
/// again. Empty for a module that is not a unit.
class SHERD_API UnitCall {
 public:
  UnitCall() = default;
  /// Returns the dtype to cast floating-point arguments to: Precision::compute, if that is set and
  /// Precision::cast_inputs is true. Returns nothing if arguments keep their dtype.
  std::optional<c10::ScalarType> input_dtype() const;

 private:
  friend class Runtime;
  friend SHERD_API UnitCall before_forward(ModuleRef module);
  friend SHERD_API void after_forward(UnitCall& call, std::span<const at::Tensor> outputs);
  friend SHERD_API void before_backward(const UnitCall& call);
  friend SHERD_API void after_backward(const UnitCall& call);
  friend SHERD_API void abandon(UnitCall& call) noexcept;
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Pass> pass_;
  int32_t position_ = -1;
  bool replayed_ = false;                 // called again by a recompute in the backward
  std::optional<AutocastState> outside_;  // the caller's settings, if the unit changes them
};

// The boundary of a unit, as plain functions. Holders made by SHERD_MODULE, sherd::call and the
// layers of a Sequential call them; code that runs modules in another way may call them itself.
// Each does nothing for a module that is not a unit. One thread at a time may use a model.

/// Begins a call of a unit: all-gathers its parameters unless they were gathered ahead, starts the
/// gathers of the next units, and sets autocast to the unit's Precision::autocast. If autocast is
/// on around the call, its cache of cast weights is off until after_forward(). On CUDA, work that
/// is enqueued on the current stream after this call finds the full parameters; on CPU they are
/// there on return. For the root this is collective: every rank calls the root or sherd::idle_pass.
/// (A unit that is called before its root was ever used becomes a root itself.) Throws if a unit is
/// called outside its root, in a backward without sherd::recompute, while parameters have no
/// values, if main weights were written but not published, and on all ranks if they begin different
/// passes. After an error the pass is over (see abandon()).
SHERD_API UnitCall before_forward(ModuleRef module);
/// Ends the call: releases (reshards) the parameters unless the unit stays gathered, restores
/// autocast, and hooks the outputs, so that before_backward() is called when a gradient reaches one
/// of them. `outputs` are all tensors that the forward returns. Throws if the unit is not the one
/// that was entered last; then call abandon().
SHERD_API void after_forward(UnitCall& call, std::span<const at::Tensor> outputs);
/// Gathers the parameters again and provides the buffer for the unit's full gradients. The hooks of
/// after_forward() call it, on autograd's thread; repeated calls have no effect. Throws outside a
/// backward that autograd runs, if the weights have changed since the forward, and if the step has
/// all its backward passes.
SHERD_API void before_backward(const UnitCall& call);
/// Starts the reduction (reduce-scatter or all-reduce) of the gradients of this call, and of the
/// calls whose backward comes before it. All of these gradients must have arrived. Optional: the
/// next unit's before_backward() or the end of the backward has the same effect.
SHERD_API void after_backward(const UnitCall& call);
/// Ends the call after its forward has thrown; call it instead of after_forward(). Ends the pass,
/// releases all units of the model and restores autocast; does not wait for other ranks, which over
/// mpi learn of it within seconds and throw as well. The next pass goes on if all ranks have given
/// up the same pass; otherwise, and on CUDA if they have started different numbers of collectives,
/// all throw.
SHERD_API void abandon(UnitCall& call) noexcept;

}  // namespace sherd
