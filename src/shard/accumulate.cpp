// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/accumulate.h"

#include <c10/util/Exception.h>

#include "plan/group_shape.h"
#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

/// Throws unless each backward has reduced its gradients completely: one more would add to what is
/// a sum over ranks already, and reduce that again.
void check_can_continue(const Runtime& runtime) {
  for (const auto& unit : runtime.units().specs()) {
    for (const auto& group : unit.groups) {
      if (!group.trainable) continue;
      TORCH_CHECK(
          gradient_sharded(group) && (!group.has_outer || gradient_sharded_outer(group)),
          "[shard] a backward of '", runtime.root().name(), "' after the step's ",
          runtime.state().backwards_done(), ", but the gradients of unit '", unit.name,
          "' are reduced once in a step, and were already: say before each backward whether it is "
          "the last (set_requires_gradient_sync, set_is_last_backward), or the number of "
          "backwards with sherd::micro_batches before the step");
    }
  }
}

}  // namespace

void expect_backward(ModuleRef model, NextBackward next) {
  const auto runtime = Runtime::of_model(*model, "expect_backward");
  runtime->check_between_passes("expect_backward");
  auto& state = runtime->parts().state;
  const int64_t number = state.backwards_done() + 1;
  if (number > 1 && state.has_all_backwards()) {
    check_can_continue(*runtime);
    state.go_on();
  }
  const bool more = next == NextBackward::more && state.micro_batches() == number;
  const bool last = next == NextBackward::last && state.micro_batches() > number;
  if (more || last) runtime->change_micro_batches(more ? number + 1 : number);
}

void drop_gradients(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "drop_gradients");
  runtime->check_between_passes("drop_gradients");
  runtime->drop_gradients();
}

BackwardCount count_backwards(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "count_backwards");
  return {runtime->state().backwards_done(), runtime->state().micro_batches()};
}

}  // namespace sherd
