// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/export.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

/// Leaves parameters that no backward of this step has reached, on any rank, out of the update:
/// like frozen ones they keep weight and moments, and have no grad(). Without this call they have
/// gradients of zero, and optimizers move them by momentum and weight decay; PyTorch's training of
/// one process does not. Call it after the step's last backward and before the update. (With
/// Loss::per_token and torch's optimizers it has no effect: their gradients come later.)
///
/// Collective; blocks. On a GPU it waits until all ranks' hosts are here, but not for the work that
/// is enqueued. No effect while a StepGraph is captured; a model with such parameters can't be
/// captured after it, until they are frozen. Throws if backward passes are missing, and during a
/// pass.
SHERD_API void leave_out_unused(ModuleRef model);

}  // namespace sherd
