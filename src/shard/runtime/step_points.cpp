// SPDX-License-Identifier: Apache-2.0
// The points of a step: micro-batches, completeness, the update, and what must be true between
// passes.
#include <c10/util/Exception.h>

#include "comm/flight/flight_ring.h"
#include "comm/long_wait.h"
#include "shard/runtime/runtime.h"

namespace sherd {

// ---- the end of the last backward ---------------------------------------------------------------

/// With Loss::per_token the step is complete only after the division: until then an optimizer finds
/// no gradients.
void Runtime::complete_step() {
  if (!world().device().is_meta()) parts_.weights.take_snapshot();
  if (!parts_.graph.capturing) parts_.watch.copy_to_host();
  if (const auto& recorder = parts_.program.recorder()) {
    recorder->begin_section(program().update().name, Section::Kind::update);
    update_entry_ = recorder->begin(program().update().instructions.front(), {});
  }
  parts_.record_section(program().update());
  if (root().root_options().loss != Loss::per_token) attach_gradients();
}

/// The optimizer's tensors get their gradients; until then they have none, and an optimizer that
/// comes too early changes nothing.
void Runtime::attach_gradients() {
  size_t index = 0;
  for (const auto& shard : parts_.shards) {
    // Without a gradient, optimizers leave a frozen parameter and its moments alone.
    if (!shard.trainable || state().frozen[index++]) continue;
    shard.main.mutable_grad() = shard.gradient;
  }
}

// ---- the update ---------------------------------------------------------------------------------

void Runtime::set_micro_batches(int64_t count) {
  TORCH_CHECK_VALUE(
      count >= 1, "[shard] micro_batches(", root().name(), ", ", count, "): at least 1");
  check_between_passes("micro_batches");
  TORCH_CHECK(
      state().backwards_done() == 0, "[shard] micro_batches(", root().name(), ", ", count,
      ") in the middle of a step: ", state().backwards_done(), " of ", state().micro_batches(),
      " backwards are done; call it between steps");
  if (count != state().micro_batches()) change_micro_batches(count);
}

void Runtime::change_micro_batches(int64_t count) {
  const int64_t before = state().micro_batches();
  parts_.state.set_micro_batches(count);
  try {
    rebuild();
  } catch (...) {
    parts_.state.set_micro_batches(before);
    throw;
  }
}

void Runtime::rebuild() {
  if (state().has_failed()) recover(parts_);  // a new program waits for what the old one issued
  parts_.orders.build(parts_.orders.next()->order());
  parts_.use(parts_.orders.next());
}

void Runtime::drop_gradients() {
  if (state().backwards_done() == 0) return;
  for (const auto& shard : parts_.shards) {
    if (shard.trainable) shard.main.mutable_grad() = at::Tensor();
  }
  parts_.state.drop_backwards();
}

void Runtime::check_complete(const char* caller) {
  check_between_passes(caller);
  if (state().frozen.empty()) return;  // nothing is trainable: backwards count for no step
  TORCH_CHECK(
      state().has_all_backwards(), "[shard] ", caller, " after ", state().backwards_done(),
      " of the ", state().micro_batches(), " backwards that make a step of '", root().name(),
      "': run the rest first, or say another number with sherd::micro_batches");
  const LongWaitScope scope(parts_.abandonment.check_function());
  parts_.agreement.begin_update(caller);
}

void Runtime::divide_by_tokens(double tokens) {
  TORCH_CHECK_VALUE(
      tokens > 0, "[shard] the step of '", root().name(), "' has ", tokens, " tokens on all ranks");
  TORCH_CHECK(!state().is_divided(), "[shard] the gradients are already divided by the tokens");
  parts_.state.set_divided();
  for (const auto* unit : parts_.units) {
    for (const auto& group : unit->groups()) {
      if (group->traits().trainable) group->storage().divide_gradient(tokens);
    }
  }
  attach_gradients();
}

/// An optimizer over the module's own parameters finds no gradients there and does nothing.
void Runtime::warn_if_unchanged() const {
  const bool first = state().step() == 0 && state().backwards_done() > 0;
  if (!first || !state().has_all_backwards() || world().device().is_meta()) return;
  if (parts_.weights.is_empty() || parts_.weights.are_written(/*compare=*/true)) return;
  TORCH_WARN(
      "[shard] publish in the first step of '", root().name(),
      "', but no main weight has changed: build the optimizer over sherd::parameters(model), not "
      "over model->parameters(), whose gradients are never set");
}

void Runtime::publish(bool by_optimizer) {
  check_between_passes("publish");
  const int64_t done = state().backwards_done();
  TORCH_CHECK(
      state().is_between_steps(), "[shard] publish after ", done, " of the ",
      state().micro_batches(), " backwards that make a step of '", root().name(),
      "': run the rest first, or say another number with sherd::micro_batches");
  TORCH_CHECK(
      done == 0 || state().is_divided() || by_optimizer ||
          root().root_options().loss != Loss::per_token,
      "[shard] the loss of '", root().name(),
      "' is per token, but the gradients were not divided: update with "
      "sherd::step(model, optimizer, {.tokens = …})");
  for (auto* unit : parts_.units) {
    if (unit->activity().is_gathered()) unit->hide();  // ahead, or still: the values are old now
    for (const auto& group : unit->groups()) {
      if (!by_optimizer && group->traits().trainable) group->storage().publish();
    }
  }
  parts_.encoded.encode();
  for (const auto& shard : parts_.shards) {
    if (shard.trainable) shard.main.mutable_grad() = at::Tensor();
  }
  parts_.program.signal_published();
  const auto& recorder = parts_.program.recorder();
  if (recorder && update_entry_) recorder->end(*update_entry_, {});
  update_entry_.reset();
  parts_.weights.note_published();
  // A backward may have had an older one, of its forward.
  if (parts_.program.shared() != parts_.orders.next()) parts_.use(parts_.orders.next());
  if (auto* ring = FlightRing::current(); ring && done > 0 && !world().device().is_meta())
    ring->end_step();
  parts_.state.end_step();
}

void Runtime::publish_loaded() {
  for (const auto* unit : parts_.units) {
    for (const auto& group : unit->groups()) group->storage().mark_all_initialised();
  }
  // Gradients of a step that was not finished are dropped, and not divided by its tokens before.
  if (parts_.state.backwards_done() > 0) parts_.state.set_divided();
  publish();
  parts_.state.undo_step();
}

void Runtime::note_edit() {
  for (auto* unit : parts_.units) unit->hide();  // what is still gathered is old now
  parts_.state.note_edit();
  parts_.weights.note_published();
  parts_.program.signal_published();
}

// ---- between passes -----------------------------------------------------------------------------

void Runtime::finish() {
  notice_failure();
  if (state().has_failed()) return;  // what is under way may never end; the next pass finds out
  streams().finish();
}

void Runtime::wait_until_idle(const char* caller) {
  check_between_passes(caller);
  if (state().has_failed()) recover(parts_);
  finish();
}

void Runtime::check_between_passes(const char* caller) {
  notice_failure();
  if (state().is_between_passes()) return;
  const bool forward = state().phase() == StepState::Phase::forward;
  for (const auto* unit : parts_.units) {
    const auto& activity = unit->activity();
    TORCH_CHECK(
        !activity.is_gathered() && !activity.is_collecting(), "[shard] ", caller, ": unit '",
        unit->name(), "' is ", activity.is_gathered() ? "gathered" : "collecting gradients",
        " in the ", forward ? "forward" : "backward", " that is under way: do it between passes");
  }
  TORCH_CHECK(false, "[shard] ", caller, ": a pass of '", root().name(), "' is under way");
}

void Runtime::check_between_steps(const char* caller) const {
  TORCH_CHECK(
      state().is_between_steps(), "[shard] ", caller, " of '", root().name(),
      "' in the middle of a step: ", state().backwards_done(), " of ", state().micro_batches(),
      " backwards are done; call it between steps");
}

// ---- memory -------------------------------------------------------------------------------------

ModelBytes Runtime::bytes() const {
  ModelBytes bytes;
  for (const auto* unit : parts_.units) {
    for (const auto& group : unit->groups()) group->add_bytes(bytes);
  }
  bytes.model_weights += parts_.encoded.scale_bytes();
  bytes.arena += parts_.program.arena_bytes();
  bytes.control = parts_.watch.bytes() + parts_.weights.bytes() +
                  parts_.agreement.records().bytes() + parts_.encoded.control_bytes();
  return bytes;
}

}  // namespace sherd
