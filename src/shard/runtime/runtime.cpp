// SPDX-License-Identifier: Apache-2.0
// The boundaries of units. The points of a step are in step_points.cpp.
#include "shard/runtime/runtime.h"

#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include "comm/long_wait.h"
#include "shard/diagnostics/findings.h"
#include "shard/exchange_call.h"
#include "shard/outside_inference.h"
#include "shard/region.h"
#include "shard/registry.h"

namespace sherd {

using Phase = StepState::Phase;

std::shared_ptr<Runtime> Runtime::of(Unit& unit) {
  if (unit.runtime() && unit.runtime()->units().has_root())
    return unit.runtime();  // else it is gone
  const auto module = module_of(unit);
  TORCH_CHECK(module, "[shard] the module of unit '", unit.name(), "' is gone");
  const OutsideInference normal;
  const std::shared_ptr<Runtime> runtime(new Runtime(unit));
  for (auto* one : runtime->parts_.units) one->set_runtime(runtime);
  runtime->parts_.units.keep_parameterless_units_alive();
  return runtime;
}

std::shared_ptr<Runtime> Runtime::of_model(const torch::nn::Module& model, const char* caller) {
  const auto unit = find_unit(&model);
  TORCH_CHECK_VALUE(
      unit, "[shard] ", caller, " is called with '", model.name(),
      "', which is not sharded: call sherd::fully_shard on the whole model, last");
  auto runtime = of(*unit);
  runtime->parts_.units.check_none_deleted();
  TORCH_CHECK_VALUE(
      &runtime->root() == unit.get(), "[shard] ", caller, " is called with unit '", unit->name(),
      "', which is not the root: pass '", runtime->root().name(), "'");
  return runtime;
}

// ---- forward ------------------------------------------------------------------------------------

UnitCall Runtime::before_forward(Unit& unit) {
  const LongWaitScope scope(parts_.abandonment.check_function());
  notice_failure();
  parts_.units.check_none_deleted();
  set_at_work(shared_from_this());
  if (replayed_region()) return recompute(unit);
  TORCH_CHECK(
      state().phase() != Phase::backward, "[shard] unit '", unit.name(),
      "' is called in the backward: wrap what is computed again in sherd::recompute (Python: in "
      "sherd.checkpoint, or give torch's checkpoint use_reentrant=False and "
      "context_fn=sherd.checkpoint_context)");
  // A recompute runs its forward without gradients; its backward comes later.
  const bool train = c10::GradMode::is_enabled() || recorded_region() != 0;
  const OutsideInference normal;
  if (state().is_between_passes()) {
    TORCH_CHECK(
        &unit == &root(), "[shard] unit '", unit.name(), "' is called outside its root '",
        root().name(), "': call the root, or shard the unit's module on its own");
    forward_.begin(train, /*idle=*/false);
  }
  UnitCall call;
  call.position_ = forward_.enter(unit);
  call.unit_ = unit.shared_from_this();
  call.pass_ = forward_.pass();
  if (call.pass_->train) {
    unit.prepare_nodes();
    call.pass_->note_first_node(call.position_);
  }
  record_call(call);
  return call;
}

void Runtime::after_forward(UnitCall& call, std::span<const at::Tensor> outputs) {
  const LongWaitScope scope(parts_.abandonment.check_function());
  const bool hooks = c10::GradMode::is_enabled() && call.pass_->train;
  const OutsideInference normal;
  const bool ends = !call.replayed_ && forward_.leave(*call.unit_);
  if (hooks) hook_outputs(call, outputs);
  if (ends) forward_.end();
}

// Note [Where a unit's backward begins]
// Before a gradient goes on into the unit, the unit's parameters must be back: a hook on each
// output sees to that. Where the output is a view and is written later (x += positions), autograd
// replaces the view's node and goes on at the node of its base, so the base has the hook as well. A
// tensor that merely passes through was made before the call, or is a leaf: nothing of the unit is
// behind it, and a hook would stay on it and name this pass in later ones.
void Runtime::hook_outputs(const UnitCall& call, std::span<const at::Tensor> outputs) {
  const uint64_t first = call.pass_->first_nodes[static_cast<size_t>(call.position_)];
  const std::weak_ptr<Runtime> runtime = weak_from_this();
  const auto hook = [&](const at::Tensor& tensor) {
    const auto& node = tensor.grad_fn();
    if (!node || node->sequence_nr() < first) return;
    tensor.register_hook([runtime, call](const at::Tensor&) {
      if (const auto alive = runtime.lock()) alive->before_backward(call);
    });
  };
  for (const auto& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    hook(output);
    if (output.is_view()) hook(at::Tensor(output._base()));
  }
}

// ---- backward -----------------------------------------------------------------------------------

/// Begins the backward of a call's pass, unless it is under way. Two forwards may end in one
/// backward: the later one's comes first, and is a backward of its own.
void Runtime::ensure_backward(const UnitCall& call) {
  if (backward_.is_of(call.pass_)) return;
  if (state().phase() == Phase::backward) finish_backward();
  backward_.begin(call.pass_);
  backward_end_ = std::make_shared<BackwardEnd>();
  queue_backward_end();
}

/// The end of a backward runs on the stream on which it began. When autograd calls it, another
/// stream may be current: that of backward()'s caller or, if no leaf of the graph is on the GPU,
/// the default stream of an autograd thread. That stream then waits for the backward's end.
void Runtime::queue_backward_end() {
  const std::weak_ptr<Runtime> weak = weak_from_this();
  const auto finish = [weak, stream = streams().compute()] {
    const auto runtime = weak.lock();
    if (!runtime) return;
    {
      const c10::OptionalStreamGuard guard(stream);
      runtime->finish_backward();
    }
    // A stream outside a capture can't wait for one inside. The caller of backward() is inside.
    if (stream && !runtime->parts_.graph.capturing) runtime->streams().wait_for(*stream);
  };
  BackwardEnd::queue(backward_end_, finish, [weak] {
    if (const auto runtime = weak.lock()) runtime->abandon();
  });
}

UnitCall Runtime::recompute(Unit& unit) {
  auto& region = *replayed_region();
  const auto& calls = region.region->calls;
  const auto* expected = region.next < calls.size() ? &calls[region.next] : nullptr;
  TORCH_CHECK(
      expected && expected->unit_.get() == &unit, "[shard] recompute calls unit '", unit.name(),
      "' where its forward called ",
      expected ? "'" + expected->unit_->name() + "'" : std::string("no more units"),
      ": the function must do the same again");
  auto call = calls[region.next++];
  call.replayed_ = true;
  ensure_backward(call);
  // Threads number their nodes each on their own, and this one may not be the forward's.
  call.pass_->note_first_node(call.position_);
  const auto copy = call.pass_->copies.find(call.position_);
  if (copy != call.pass_->copies.end()) {
    show_buffers(unit, copy->second);
  } else {
    backward_.enter_recompute(call.position_);
  }
  parts_.exchanges.enter_backward(call.position_, unit);
  record_call(call);
  return call;
}

void Runtime::before_backward(const UnitCall& call) {
  const LongWaitScope scope(parts_.abandonment.check_function());
  ensure_backward(call);
  set_at_work(shared_from_this());
  if (backward_.enter(call.position_)) parts_.exchanges.enter_backward(call.position_, *call.unit_);
}

void Runtime::after_backward(const UnitCall& call) {
  const LongWaitScope scope(parts_.abandonment.check_function());
  if (backward_.is_of(call.pass_)) backward_.leave(call.position_);
}

// Note [The phase ends last]
// While something may still throw, the pass is under way: then its end fails it (abandon), and the
// step begins anew on this rank. If the phase were over by then, the gradients of the backward
// would be in the sum without being counted, and a caller that repeats the micro-batch would add
// them twice. Only report_findings() comes later: its error is about gradients that are complete.
void Runtime::finish_backward() {
  const LongWaitScope scope(parts_.abandonment.check_function());
  const auto pass = backward_.finish();
  auto& agreement = parts_.agreement;
  agreement.await_record();
  agreement.note_findings();
  if (agreement.records().take_new_recomputes() && parts_.orders.adopt_recomputes(*pass)) {
    parts_.use(parts_.orders.next());
  }
  // Without memory there are no other ranks to tell.
  const bool new_exchanges = agreement.records().take_new_exchanges() ||
                             (world().device().is_meta() && !pass->exchanges.empty());
  if (new_exchanges && parts_.orders.adopt_exchanges(*pass)) parts_.use(parts_.orders.next());
  const bool last = state().backward_flags().last;
  if (last) complete_step();
  parts_.state.end_backward();
  parts_.state.count_backward();
  if (backward_end_) backward_end_->set_over();
  // Here all ranks are at the same point, whatever else they do on their own.
  if (last && agreement.is_report_due()) report_findings(parts_);
}

void Runtime::idle_pass() {
  const LongWaitScope scope(parts_.abandonment.check_function());
  check_between_passes("idle_pass");
  const bool train = c10::GradMode::is_enabled();
  TORCH_CHECK(
      !train || !parts_.units.is_reached() || !state().has_all_backwards(),
      "[shard] idle_pass would be backward ", state().backwards_done() + 1, " of '", root().name(),
      "', but a step has ", state().micro_batches(),
      ": update and publish first, or say another number with sherd::micro_batches");
  try {
    forward_.begin(train, /*idle=*/true);
    forward_.run_rest();
    const auto pass = forward_.end();
    if (!train) return;
    backward_.begin(pass);
    backward_end_ = std::make_shared<BackwardEnd>();
    finish_backward();
  } catch (...) {
    abandon();
    throw;
  }
}

// ---- failures -----------------------------------------------------------------------------------

void Runtime::abandon() noexcept {
  if (backward_end_) backward_end_->set_over();
  const bool in_backward = state().phase() == Phase::backward;
  if (!parts_.state.fail()) return;
  if (units().has_root()) {
    parts_.abandonment.announce(
        in_backward ? "a backward" : "a forward", root(), forward_.innermost());
  }
  forward_.reset();
  if (in_backward) backward_.reset();
  release_all(parts_);
}

void Runtime::notice_failure() noexcept {
  if (!backward_end_ || torch::autograd::get_current_graph_task_id() != -1) return;
  backward_end_->wait([this] { abandon(); });
}

void Runtime::drop(const Unit& unit) noexcept {
  notice_failure();
  // What is under way may still read its shards.
  streams().close(state().has_failed());
  parts_.units.drop(unit);
  parts_.shards.clear();  // they hold its memory
}

}  // namespace sherd
