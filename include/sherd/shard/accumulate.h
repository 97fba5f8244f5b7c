// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "sherd/export.h"
#include "sherd/shard/module_ref.h"

// For loops that do not know the number of their micro-batches before a step begins, such as those
// written for FSDP2. Others call micro_batches() (fully_shard.h).
namespace sherd {

/// The state of a backward that has not begun.
enum class NextBackward : uint8_t {
  unknown,  ///< it may be the step's last one
  more,     ///< the step has more of them after it
  last,     ///< it is the step's last one
};

/// Fits the number of backward passes of the step that is under way, or begins next, to what is
/// known of the next one: `more` raises it if the next backward would be the last, `last` makes the
/// next one the last. A step that had all its backward passes is continued: gradients of the next
/// one are added to its own, as in PyTorch; with `unknown` the next step has its old number again.
///
/// Call it on all ranks alike, before the forward or the backward; if they differ, the pass throws.
/// A new number with `more` or `last` stays valid for later steps and builds a new program, as
/// micro_batches() does. Not collective otherwise. Throws during a pass, and if it would continue a
/// step whose gradients are reduced once, in its last backward: those that are not sharded over all
/// data-parallel axes (HSDP, no_shard, optim).
SHERD_API void expect_backward(ModuleRef model, NextBackward next);
/// Drops the gradients of the step: it begins again with its first backward. No effect without
/// any. Call it on all ranks. Sends nothing. Throws during a pass.
SHERD_API void drop_gradients(ModuleRef model);

/// The backward passes of a step.
struct BackwardCount {
  int64_t done = 0;
  int64_t planned = 1;  ///< done by the end of the step
};
/// Returns those of the step that is under way. Not collective, unless it is the first use of the
/// root.
SHERD_API BackwardCount count_backwards(ModuleRef model);

}  // namespace sherd
