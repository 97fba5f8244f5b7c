// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/unused.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "comm/long_wait.h"
#include "shard/outside_inference.h"
#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

/// For each parameter that was trainable when it was sharded: 1 if this step's backwards have
/// reached it on this rank.
at::Tensor reached_here(const Runtime& runtime) {
  std::vector<int32_t> reached;
  for (const auto* unit : runtime.units()) {
    for (const auto& group : unit->groups()) {
      if (!group->traits().trainable) continue;
      for (size_t member = 0; member < group->size(); ++member) {
        reached.push_back(group->inbox().received_in_step(member));
      }
    }
  }
  const auto result = at::empty({std::ssize(reached)}, at::TensorOptions().dtype(at::kInt));
  std::copy(reached.begin(), reached.end(), result.mutable_data_ptr<int32_t>());
  return result;
}

/// The largest value of each element over all ranks, on the CPU. On a GPU it travels on a stream of
/// its own, so that the host does not wait for the backward.
at::Tensor max_over_ranks(const at::Tensor& values, const World& world) {
  const auto device = world.device();
  std::optional<c10::Stream> stream;
  if (!device.is_cpu()) {
    stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  const c10::OptionalStreamGuard guard(stream);
  const auto result = values.to(device);
  world.communicator().all_reduce(result, Reduction::max(), stream).wait();
  return result.cpu();
}

}  // namespace

void leave_out_unused(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "leave_out_unused");
  auto& parts = runtime->parts();
  const auto& world = runtime->world();
  if (parts.graph.capturing || world.device().is_meta()) return;
  runtime->check_between_passes("leave_out_unused");
  const auto& state = runtime->state();
  if (state.frozen.empty()) return;
  TORCH_CHECK(
      state.has_all_backwards(), "[shard] leave_out_unused after ", state.backwards_done(),
      " of the ", state.micro_batches(), " backwards that make a step of '", runtime->root().name(),
      "': run the rest first, or say another number with sherd::micro_batches");
  const OutsideInference normal;
  auto reached = reached_here(*runtime);
  if (world.size() > 1) {
    const LongWaitScope scope(parts.abandonment.check_function());
    reached = max_over_ranks(reached, world);
  }
  const auto* flags = reached.const_data_ptr<int32_t>();
  auto left_out = state.frozen;
  size_t index = 0;
  for (const auto& shard : parts.shards) {
    if (!shard.trainable) continue;
    if (flags[index] == 0 && !left_out[index]) {
      left_out[index] = true;
      shard.main.mutable_grad() = at::Tensor();
    }
    ++index;
  }
  if (left_out == state.frozen) return;
  parts.state.frozen = std::move(left_out);  // until the next backward begins
  ++parts.graph.update_version;
}

}  // namespace sherd
