// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/boundary.h"

#include "shard/autocast_state.h"
#include "shard/registry.h"
#include "shard/runtime/runtime.h"

namespace sherd {

std::optional<c10::ScalarType> UnitCall::input_dtype() const {
  if (!unit_ || !unit_->options().precision.cast_inputs) return std::nullopt;
  return unit_->options().precision.compute;
}

UnitCall before_forward(ModuleRef module) {
  const auto unit = find_unit(module.get());
  if (!unit) return {};
  const auto runtime = Runtime::of(*unit);
  try {
    auto call = runtime->before_forward(*unit);
    if (const auto dtype = unit->options().precision.autocast) {
      call.outside_ = autocast_now();
      autocast_to(*dtype, unit->mesh().world().device().type());
    } else if (const auto now = autocast_now(); (now.cpu || now.cuda) && now.cache) {
      call.outside_ = now;
      autocast_without_cache();
    }
    return call;
  } catch (...) {
    runtime->abandon();
    throw;
  }
}

void after_forward(UnitCall& call, std::span<const at::Tensor> outputs) {
  if (!call.unit_) return;
  if (call.outside_) restore(*call.outside_);
  call.outside_.reset();
  call.unit_->runtime()->after_forward(call, outputs);
}

void before_backward(const UnitCall& call) {
  if (call.unit_) call.unit_->runtime()->before_backward(call);
}

void after_backward(const UnitCall& call) {
  if (call.unit_) call.unit_->runtime()->after_backward(call);
}

void abandon(UnitCall& call) noexcept {
  if (call.outside_) restore(*call.outside_);
  call.outside_.reset();
  // Within a backward (a recompute), what failed is the backward: its end sees to it.
  if (call.unit_ && !call.replayed_) call.unit_->runtime()->abandon();
}

}  // namespace sherd
