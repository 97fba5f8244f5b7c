// SPDX-License-Identifier: Apache-2.0
// The backward: from the gradients that arrive at a unit's outputs to the program's instructions.
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <chrono>
#include <memory>

#include "shard/region.h"
#include "shard/runtime.h"

namespace sherd {

namespace {

/// Autograd's thread ends the node that it is at, then lets go of a backward that failed.
constexpr std::chrono::seconds kLetGo{10};

}  // namespace

/// Called by autograd at the end of a backward, or destroyed without when the backward failed.
///
/// It runs on the stream on which the backward began. When autograd calls it, another stream may be
/// current: that of backward()'s caller or, if no leaf of the graph is on the GPU, the default
/// stream of an autograd thread. That stream then waits for the backward's end.
class Runtime::BackwardEnd {
 public:
  BackwardEnd(std::weak_ptr<Runtime> runtime, std::shared_ptr<Backward> backward)
      : runtime_(std::move(runtime)),
        backward_(std::move(backward)),
        stream_(runtime_.lock()->streams_->compute()) {}
  ~BackwardEnd() {
    if (const auto runtime = runtime_.lock()) runtime->fail(*backward_);
  }
  BackwardEnd(const BackwardEnd&) = delete;
  BackwardEnd& operator=(const BackwardEnd&) = delete;

  void operator()() {
    const auto runtime = runtime_.lock();
    if (!runtime || backward_->over) return;
    {
      const c10::OptionalStreamGuard guard(stream_);
      runtime->finish_backward();
    }
    if (stream_) runtime->streams_->wait_for(*stream_);
  }

 private:
  std::weak_ptr<Runtime> runtime_;
  std::shared_ptr<Backward> backward_;
  std::optional<c10::Stream> stream_;  // on a GPU
};

void Runtime::fail(Backward& backward) noexcept {
  const std::lock_guard lock(backward.mutex);
  if (!backward.over) abandon();
  backward.ended.notify_all();
}

void Runtime::notice_failure() noexcept {
  if (!backward_ || torch::autograd::get_current_graph_task_id() != -1) return;
  std::unique_lock lock(backward_->mutex);
  backward_->ended.wait_for(lock, kLetGo, [&] { return backward_->over; });
  if (!backward_->over) abandon();
}

UnitCall Runtime::replay(Unit& unit) {
  auto& region = *replayed_region();
  TORCH_CHECK(
      region.next < region.region->calls.size() &&
          region.region->calls[region.next].unit_.get() == &unit,
      "[shard] recompute calls unit '", unit.name(), "' where its forward called ",
      region.next < region.region->calls.size()
          ? "'" + region.region->calls[region.next].unit_->name() + "'"
          : std::string("no more units"),
      ": the function must do the same again");
  auto call = region.region->calls[region.next++];
  call.replayed_ = true;
  if (phase_ != Phase::backward || pass_ != call.pass_) {
    if (phase_ == Phase::backward) finish_backward();
    begin_backward(call.pass_, /*idle=*/false);
  }
  // Threads number their nodes each on their own, and this one may not be the forward's.
  pass_->note_first_node(call.position_);
  if (const auto copy = pass_->copies.find(call.position_); copy != pass_->copies.end()) {
    show({&unit, kNone, copy->second, /*unforeseen=*/true});
    unit.phase = Unit::Phase::backward;
    record_call(call);
    return call;
  }
  const auto position = static_cast<size_t>(pass_->place(call.position_));
  const int32_t again = section_->recomputed[position];
  run_backward(again == kNone ? section_->entered[position] : again);
  record_call(call);
  return call;
}

void Runtime::before_backward(const UnitCall& call) {
  if (phase_ != Phase::backward || pass_ != call.pass_) {
    // Two forwards may end in one backward: the later one's comes first, and is a backward of its
    // own.
    if (phase_ == Phase::backward) finish_backward();
    begin_backward(call.pass_, /*idle=*/false);
  }
  run_backward(section_->entered[static_cast<size_t>(pass_->place(call.position_))]);
}

void Runtime::after_backward(const UnitCall& call) {
  if (phase_ != Phase::backward || pass_ != call.pass_) return;
  const auto& boundaries = section_->boundaries;
  for (size_t i = cursor_; i < boundaries.size(); ++i) {
    if (boundaries[i].kind != Boundary::Kind::exit ||
        boundaries[i].position != pass_->place(call.position_)) {
      continue;
    }
    run_backward(static_cast<int32_t>(i));
    return;
  }
}

void Runtime::begin_backward(const std::shared_ptr<Pass>& pass, bool idle) {
  check_whole();
  TORCH_CHECK(
      phase_ == Phase::resting, "[shard] a backward begins while the forward of '", root().name(),
      "' is under way");
  if (recovering_) recover();
  // Note [Backwards of a step]
  // A backward that brings a gradient to no parameter (autograd::grad of an input, a model that is
  // frozen whole) gathers what it needs, reduces nothing, and is none of the step's.
  trains_ = is_reached();
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  partial_ = wanted && !wanted->empty();
  TORCH_CHECK(
      !trains_ || backwards_done_ < micro_batches_, "[shard] backward ", backwards_done_ + 1,
      " of '", root().name(), "', but a step has ", micro_batches_,
      ": update and publish first, or say another number with sherd::micro_batches");
  check_published();
  TORCH_CHECK(
      pass->weights == weight_version_, "[shard] a backward of '", root().name(),
      "' belongs to a forward that was made before the weights changed: run each backward before "
      "the update, or the forward again");
  if (pass->program != program_) {
    TORCH_CHECK(
        addresses_pinned_by_.empty(), "[shard] a backward of '", root().name(),
        "' belongs to a forward that was made with another program, but ", addresses_pinned_by_,
        ", which has this one's addresses: run the backward before");
    use(pass->program);
    program_agreed_ = true;
  }
  pass_ = pass;
  if (auto frozen = frozen_now(); frozen != frozen_) {
    frozen_ = std::move(frozen);
    note_new_update();
  }
  backward_flags_ = {
      trains_ && backwards_done_ == 0, trains_ && backwards_done_ + 1 == micro_batches_,
      units_stay_gathered_};
  section_ = &program_->backward(backward_flags_);
  if (recorder_) recorder_->begin_section(section_->name, Section::Kind::backward);
  agree_on_pass(
      trains_ ? "a backward" : "a backward that reaches no parameter",
      (trains_ ? 8 : 16) | backward_flags_.first | backward_flags_.last << 1 |
          backward_flags_.kept << 2);
  cursor_ = 0;
  phase_ = Phase::backward;
  for (auto* unit : units_) {
    unit->collecting = false;
    for (const auto& group : unit->groups()) {
      if (backward_flags_.first && !group->layout().shards_gradients())
        group->inbox().mark_all_unwritten();
    }
  }
  backward_ = std::make_shared<Backward>();
  if (idle) return;
  auto end = std::make_shared<BackwardEnd>(weak_from_this(), backward_);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { (*end)(); });
}

void Runtime::run_backward(int32_t until) {
  for (; cursor_ <= static_cast<size_t>(until); ++cursor_) {
    const auto& boundary = section_->boundaries[cursor_];
    run(boundary);
    if (boundary.unit == kNone) continue;
    auto& unit = *units_[static_cast<size_t>(boundary.unit)];
    if (boundary.kind == Boundary::Kind::exit) {
      unit.leave();
      continue;
    }
    if (boundary.kind == Boundary::Kind::recompute) {
      unit.phase = Unit::Phase::backward;
      continue;
    }
    unit.enter(Unit::Phase::backward);
    unit.collecting = trains_;
  }
}

void Runtime::finish_backward() {
  run_backward(static_cast<int32_t>(section_->boundaries.size()) - 1);
  phase_ = Phase::resting;
  backward_->over = true;
  const auto pass = std::exchange(pass_, nullptr);
  units_stay_gathered_ = false;
  look_at_agreement(/*block=*/true);
  report_due_ = agreement_->take_findings_flag() || report_due_;
  if (agreement_->take_new_recomputes()) adopt_new_recomputes(*pass);
  if (!trains_ || ++backwards_done_ < micro_batches_) return;
  complete_step();
  // Here all ranks are at the same point, whatever else they do on their own.
  if (report_due_) report();
}

/// A loss per token is not done before its gradients are divided: until then an optimizer finds
/// none.
void Runtime::complete_step() {
  if (!world_.device().is_meta()) main_weights_seen_.snapshot();
  if (!capturing_) watch_.copy_to_host();
  if (recorder_) {
    recorder_->begin_section(program_->update().name, Section::Kind::update);
    update_entry_ = recorder_->begin(program_->update().instructions.front(), {});
  }
  if (root().options().loss != Loss::per_token) attach_gradients();
}

/// The optimizer's tensors get their gradients; until then they have none, and an optimizer that
/// comes too early changes nothing.
void Runtime::attach_gradients() {
  size_t number = 0;
  for (const auto& shard : shards_) {
    // Without a gradient, optimizers leave a frozen parameter and its moments alone.
    if (!shard.trainable || frozen_[number++]) continue;
    shard.main.mutable_grad() = shard.gradient;
  }
}

void Runtime::idle_pass() {
  check_resting("idle_pass");
  const bool train = c10::GradMode::is_enabled();
  TORCH_CHECK(
      !train || !is_reached() || backwards_done_ < micro_batches_,
      "[shard] idle_pass would be backward ", backwards_done_ + 1, " of '", root().name(),
      "', but a step has ", micro_batches_,
      ": update and publish first, or say another number with sherd::micro_batches");
  try {
    begin_pass(train, /*idle=*/true);
    run_forward(section_->boundaries.size());
    const auto pass = pass_;
    end_pass();
    if (!train) return;
    begin_backward(pass, /*idle=*/true);
    finish_backward();
  } catch (...) {
    abandon();
    throw;
  }
}

}  // namespace sherd
