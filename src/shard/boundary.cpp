// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/boundary.h"

#include "shard/registry.h"
#include "shard/runtime.h"

namespace sherd {

UnitCall before_forward(const torch::nn::Module& module) {
  const auto unit = find_unit(&module);
  if (!unit) return {};
  const auto runtime = Runtime::of(*unit);
  try {
    return runtime->before_forward(*unit);
  } catch (...) {
    runtime->abandon();
    throw;
  }
}

void after_forward(UnitCall& call, std::span<const at::Tensor> outputs) {
  if (call.unit_) call.unit_->runtime->after_forward(call, outputs);
}

void before_backward(const UnitCall& call) {
  if (call.unit_) call.unit_->runtime->before_backward(call);
}

void after_backward(const UnitCall& call) {
  if (call.unit_) call.unit_->runtime->after_backward(call);
}

void abandon(UnitCall& call) noexcept {
  // Within a backward (a recompute), what failed is the backward: its end sees to it.
  if (call.unit_ && !call.replayed_) call.unit_->runtime->abandon();
}

}  // namespace sherd
