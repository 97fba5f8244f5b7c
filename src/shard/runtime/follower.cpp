// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/follower.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "shard/runtime/pass_agreement.h"

namespace sherd {

Follower::Follower(
    const World& world,
    const ModelUnits& units,
    const StepState& state,
    const BoundProgram& program,
    Executor& executor,
    RankRecords& records,
    Watch& watch)
    : world_(world),
      units_(units),
      state_(state),
      program_(program),
      executor_(executor),
      records_(records),
      watch_(watch) {}

void Follower::begin(bool idle, bool follows) {
  followed_.reset();
  idle_ = idle;
  follows_ = follows;
  if (!follows || !world_.device().is_cuda()) return;
  // The shards must be there: what is gathered beside the program does not wait for the current
  // stream.
  const c10::impl::VirtualGuardImpl guard(world_.device().type());
  guard.synchronizeStream(guard.getStream(world_.device()));
}

void Follower::follow(CallTracker& calls, bool order_known, bool block) {
  const BackwardFlags flags{
      state_.backwards_done() == 0, state_.backwards_done() + 1 == state_.micro_batches(),
      /*still_gathered=*/true};
  // The others send no record for a backward that does not communicate.
  if (!follows_ || followed_ || (order_known && !communicates(program_->backward(flags)))) return;
  // On CUDA the current stream may wait for gathers that the others have not come to yet.
  std::optional<c10::StreamGuard> side;
  if (world_.device().is_cuda()) {
    side.emplace(c10::impl::VirtualGuardImpl(world_.device().type())
                     .getStreamFromGlobalPool(world_.device(), /*isHighPriority=*/false));
  }
  while (!followed_) {
    if (!records_.is_following()) records_.start_following(watch_.has_findings());
    // The others finish what the program has issued before they ask for more: that takes this rank.
    LongWait wait;
    while (block && !records_.arrived()) {
      program_.streams().pump();
      wait.pause();
    }
    if (!records_.arrived()) return;
    const auto next = records_.followed();
    follows_ = next.has_value();
    if (!follows_) return;  // no rank has data
    TORCH_CHECK(
        next->kind != RankRecords::Kind::recovery, "[shard] this rank, ", world_.rank(),
        ", has no data in a pass that the other ranks have given up: catch this error and call "
        "sherd::idle_pass again, as they begin the pass again");
    if (const auto unit = next->unforeseen_unit()) {
      executor_.gather_now(units_[*unit], state_.forward_flags(/*train=*/true).changed);
      continue;
    }
    followed_ = next;
    if (next->kind == RankRecords::Kind::unforeseen) calls.note_other_order();
  }
}

}  // namespace sherd
