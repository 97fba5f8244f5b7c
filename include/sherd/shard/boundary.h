// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "sherd/export.h"

namespace torch::nn {
class Module;
}

namespace sherd {

class Unit;
struct Pass;

/// Autocasting on a thread.
struct AutocastState {
  bool cpu = false;
  bool cuda = false;
  c10::ScalarType cpu_dtype{};
  c10::ScalarType cuda_dtype{};
  bool cache = true;
};

/// One call of a unit, from its forward to its backward.
class SHERD_API UnitCall {
 public:
  UnitCall() = default;
  /// What floating-point arguments are to be cast to, if anything.
  std::optional<c10::ScalarType> input_dtype() const;

 private:
  friend class Runtime;
  friend SHERD_API UnitCall before_forward(const torch::nn::Module& module);
  friend SHERD_API void after_forward(UnitCall& call, std::span<const at::Tensor> outputs);
  friend SHERD_API void before_backward(const UnitCall& call);
  friend SHERD_API void after_backward(const UnitCall& call);
  friend SHERD_API void abandon(UnitCall& call) noexcept;
  std::shared_ptr<Unit> unit_;
  std::shared_ptr<Pass> pass_;
  int32_t position_ = -1;
  bool replayed_ = false;                 // under a recompute in the backward
  std::optional<AutocastState> outside_;  // where the forward runs under another
};

// The boundary of a unit: four plain functions. The holder of SHERD_MODULE, sherd::call and the
// layers of a Sequential call them; so can anything else that runs a module.

/// The parameters are there when what is enqueued on the current stream from now on runs, and
/// autocasting is as the unit's precision says. For a module that is no unit it does nothing.
SHERD_API UnitCall before_forward(const torch::nn::Module& module);
/// The parameters are released. Sees to it that before_backward is called when a gradient reaches
/// one of the outputs.
SHERD_API void after_forward(UnitCall& call, std::span<const at::Tensor> outputs);
/// The parameters are there again, and room for the gradients. Any number of times, within the
/// backward that autograd runs.
SHERD_API void before_backward(const UnitCall& call);
/// All gradients of this call and those after it have come: they are reduced. Called by nobody, it
/// follows from the next unit's before_backward or the end of the backward.
SHERD_API void after_backward(const UnitCall& call);
/// Instead of after_forward, when the forward has thrown: every unit rests again.
SHERD_API void abandon(UnitCall& call) noexcept;

}  // namespace sherd
