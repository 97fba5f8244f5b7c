// SPDX-License-Identifier: Apache-2.0
// The forward: from the boundaries that a model crosses to the program's instructions. And what
// happens when something throws.
#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "shard/outside_inference.h"
#include "shard/region.h"
#include "shard/runtime.h"

namespace sherd {

bool communicates(const Section& section) {
  return std::any_of(
      section.instructions.begin(), section.instructions.end(),
      [](const Instruction& one) { return one.stream != Stream::compute; });
}

// ---- forward ------------------------------------------------------------------------------------

UnitCall Runtime::before_forward(Unit& unit) {
  notice_failure();
  check_whole();
  if (replayed_region()) return replay(unit);
  TORCH_CHECK(
      phase_ != Phase::backward, "[shard] unit '", unit.name(),
      "' is called in the backward: wrap what is computed again in sherd::recompute");
  const bool train = c10::GradMode::is_enabled() || recorded_region() != nullptr;
  const OutsideInference normal;
  if (phase_ == Phase::resting) {
    TORCH_CHECK(
        &unit == &root(), "[shard] unit '", unit.name(), "' is called outside its root '",
        root().name(), "': call the root, or shard the unit's module on its own");
    begin_pass(train, /*idle=*/false);
  }
  const auto ahead = find_ahead(unit);
  UnitCall call;
  if (ahead) {
    run_forward(*ahead);
    const auto& boundary = section_->boundaries[cursor_];
    const bool copies = notice_recompute(order()[cursor_].recompute);
    if (recording_order_) observed_order_.push_back({unit.number, true});
    call.position_ = recording_order_ ? entered_++ : boundary.position;
    frames_.push_back({&unit, boundary.position, {}, false, copies ? call.position_ : kNone});
    ++cursor_;
    run(boundary);
  } else {
    start_recording_order();
    observed_order_.push_back({unit.number, true});
    call.position_ = entered_++;
    frames_.push_back({&unit, kNone, {}, true, kNone});
    enter_unforeseen(unit);
  }
  unit.enter(Unit::Phase::forward);
  if (pass_->train) {
    unit.prepare_nodes();
    pass_->note_first_node(call.position_);
  }
  call.unit_ = unit.shared_from_this();
  call.pass_ = pass_;
  record_call(call);
  made_.push_back({call.position_, recorded_region()});
  return call;
}

/// Where the unit is entered next, before the end of the call that is under way.
std::optional<size_t> Runtime::find_ahead(const Unit& unit) const {
  const auto& boundaries = section_->boundaries;
  // A call within one that was not foreseen can't have been either.
  if (!frames_.empty() && frames_.back().unforeseen) return std::nullopt;
  const int32_t inside = frames_.empty() ? kNone : frames_.back().position;
  for (size_t i = cursor_; i < boundaries.size(); ++i) {
    const auto& boundary = boundaries[i];
    if (boundary.kind == Boundary::Kind::exit && boundary.position == inside) return std::nullopt;
    if (boundary.kind == Boundary::Kind::enter && boundary.unit == unit.number) return i;
  }
  return std::nullopt;
}

/// Units between here and there are not called on this rank. Others may call them, so what they
/// need of this rank is issued all the same.
void Runtime::run_forward(size_t until) {
  for (; cursor_ < until; ++cursor_) {
    const auto& boundary = section_->boundaries[cursor_];
    if (recording_order_) {
      observed_order_.push_back(order()[cursor_]);
      if (observed_order_.back().enter) ++entered_;
    }
    run(boundary);
    auto& unit = *units_[static_cast<size_t>(boundary.unit)];
    if (boundary.kind == Boundary::Kind::enter) {
      ++unit.calls;
    } else {
      unit.leave();
    }
  }
}

void Pass::note_first_node(int32_t position) {
  const auto index = static_cast<size_t>(position);
  if (first_nodes.size() <= index) first_nodes.resize(index + 1);
  first_nodes[index] = at::sequence_number::peek();
}

// Note [Where a unit's backward begins]
// Before a gradient goes on into the unit, the unit's parameters must be back: a hook on each
// output sees to that. Where the output is a view and is written later (x += positions), autograd
// replaces the view's node and goes on at the node of its base, so the base has the hook as well. A
// tensor that merely passes through was made before the call, or is a leaf: nothing of the unit is
// behind it, and a hook would stay on it and speak of this pass in later ones.
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

void Runtime::after_forward(UnitCall& call, std::span<const at::Tensor> outputs) {
  const bool hooks = c10::GradMode::is_enabled() && call.pass_->train;
  const OutsideInference normal;
  auto& unit = *call.unit_;
  if (!call.replayed_) {
    TORCH_CHECK(
        phase_ == Phase::forward && !frames_.empty() && frames_.back().unit == &unit,
        "[shard] unit '", unit.name(), "' is left, but it is not the one entered last");
    const auto& frame = frames_.back();
    if (frame.copied_position != kNone) copy_parameters(frame);
    if (frame.unforeseen) {
      leave_unforeseen(unit);
    } else {
      size_t exit = cursor_;
      while (section_->boundaries[exit].kind != Boundary::Kind::exit ||
             section_->boundaries[exit].position != frame.position) {
        ++exit;
      }
      run_forward(exit);
      if (recording_order_) observed_order_.push_back({unit.number, false});
      run(section_->boundaries[cursor_++]);
    }
    frames_.pop_back();
    unit.leave();
  }
  if (hooks) hook_outputs(call, outputs);
  if (!call.replayed_ && frames_.empty()) end_pass();
}

void Runtime::begin_pass(bool train, bool idle) {
  if (recovering_) recover();
  if (!order_agreed_) check_initialised();  // once is enough
  check_published();
  if (program_ != next_program_) use(next_program_);
  followed_.reset();
  follows_ = idle && train && !capturing_ && world_.size() > 1 && !world_.device().is_meta();
  if (follows_) finish_for_following();
  pass_ = std::make_shared<Pass>(Pass{program_, train, weight_version_});
  const ForwardFlags flags{changed_, train, units_stay_gathered_};
  section_ = &program_->forward(flags);
  if (recorder_) recorder_->begin_section(section_->name, Section::Kind::forward);
  agree_on_pass(
      train ? "a forward with gradients" : "a forward without gradients",
      flags.changed | flags.train << 1 | flags.kept << 2);
  cursor_ = 0;
  idle_ = idle;
  recording_order_ = false;
  observed_order_.clear();
  entered_ = 0;
  phase_ = Phase::forward;
}

/// A pass that communicates is one that all ranks make, in the same order: a forward of one rank
/// alone would be taken for what the others do next.
void Runtime::agree_on_pass(const char* what, int64_t flags) {
  if (capturing_) return;  // ranks speak before each replay
  if (!communicates(*section_) && program_agreed_) return;
  const int64_t number = ++passes_;
  const auto fingerprint =
      static_cast<int64_t>(program_->fingerprint() ^ std::hash<std::vector<bool>>()(frozen_));
  if (const auto theirs = std::exchange(followed_, std::nullopt)) {
    TORCH_CHECK(
        theirs->number == step_ && theirs->hash == fingerprint &&
            theirs->detail == (number << 8 | flags),
        "[shard.agree] rank ", world_.rank(), ", which has no data, begins ", what, " as pass ",
        number, " of step ", step_ + 1, ", but the other ranks do something else: a rank calls ",
        "sherd::idle_pass for each pass that the others make with data");
    program_agreed_ = true;
    return;
  }
  const bool news = watch_.has_findings();
  agreement_->start(
      {Agreement::Kind::pass, step_, fingerprint, number << 8 | flags, news,
       !pass_->new_recomputes.empty()},
      [this, program = program_, step = step_, number, what, frozen = frozen_] {
        return c10::str(
            "begins ", what, " as pass ", number, " of step ", step + 1,
            "\nfrozen since sharding: ", frozen_text(frozen), "\n", program->facts());
      });
  // Unknown programs are compared before anything else is sent.
  if (!program_agreed_) agreement_->check(/*block=*/true);
  program_agreed_ = true;
}

void Runtime::end_pass() {
  phase_ = Phase::resting;
  drop_copy_of_lone_call();
  look_at_agreement(/*block=*/true);
  if (idle_) follow_others(/*block=*/true);
  changed_ = false;
  if (pass_->train) units_stay_gathered_ = true;
  report_due_ = agreement_->take_findings_flag() || report_due_;
  if (recording_order_ || (!order_agreed_ && pass_->train)) {
    adopt_observed_order();
  } else if (std::any_of(recomputes_.begin(), recomputes_.end(), [](const auto& seen) {
               return seen.copies;
             })) {
    pass_->new_recomputes = call_marks(order());
  }
  forget_calls();
  pass_.reset();
}

void Runtime::start_recording_order() {
  if (recording_order_) return;
  recording_order_ = true;
  const auto& known = order();
  observed_order_.assign(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(cursor_));
  entered_ = 0;
  for (const auto& visit : observed_order_) entered_ += visit.enter ? 1 : 0;
}

/// A unit that the program does not expect here is gathered on the spot, into memory of its own:
/// its slot may be another's at this time. All ranks with data do so, or it is an error; those
/// without follow (see follow_others).
void Runtime::enter_unforeseen(Unit& unit) {
  agreement_->check(/*block=*/true);
  streams_->finish();
  const auto words =
      c10::str("calls unit '", unit.name(), "' where the program does not expect it");
  agreement_->start(
      {Agreement::Kind::unforeseen, issued_, hash_of(unit.name()), unit.number + 1},
      [words] { return words; });
  agreement_->check(/*block=*/true);
  frames_.back().buffers = gather_unforeseen(unit);
  show(frames_.back());
}

std::vector<at::Tensor> Runtime::gather_unforeseen(Unit& unit) {
  std::vector<at::Tensor> buffers;
  for (const auto& group : unit.groups()) {
    if (changed_ && group->layout().needs_refresh()) group->transfers().refresh_now();
    if (group->layout().needs_gather()) buffers.push_back(group->transfers().gather_now());
    ++issued_;
  }
  return buffers;
}

void Runtime::leave_unforeseen(Unit& unit) {
  observed_order_.push_back({unit.number, false});
  if (unit.calls == 1) return unit.hide(/*keeps_memory=*/true);  // maybe of a gather ahead
  // Within a call of itself: the outer one goes on with what it had.
  for (auto frame = frames_.rbegin() + 1; frame != frames_.rend(); ++frame) {
    if (frame->unit == &unit) return show(*frame);
  }
}

void Runtime::show(const Frame& frame) {
  auto buffer = frame.buffers.begin();
  for (const auto& group : frame.unit->groups()) {
    if (frame.unforeseen && group->layout().needs_gather()) {
      group->parameters().show((buffer++)->mutable_data_ptr());
    } else {
      group->show();
    }
  }
  frame.unit->gathered = true;
}

// ---- when something throws ----------------------------------------------------------------------

void Runtime::abandon() noexcept {
  if (backward_) backward_->over = true;
  if (phase_ == Phase::resting) return;
  if (phase_ == Phase::backward && trains_) {
    backwards_done_ = 0;  // the step's gradients are incomplete
    gradients_incomplete_ = true;
  }
  phase_ = Phase::resting;
  frames_.clear();
  pass_.reset();
  forget_calls();
  units_stay_gathered_ = false;
  recovering_ = true;
  for (auto* unit : units_) {
    if (!unit) continue;
    unit->hide(/*keeps_memory=*/true);  // a gather may still write there
    unit->rest();
    for (const auto& group : unit->groups()) group->inbox().drop_pending();
  }
}

/// After an exception all ranks must have issued the same collectives, or the next ones would be
/// taken for each other.
void Runtime::recover() {
  agreement_->check(/*block=*/true);
  agreement_->start(
      {Agreement::Kind::recovery, issued_, backwards_done_, 0}, [issued = issued_, this] {
        return c10::str(
            "goes on after an exception in '", root().name(), "', with ", issued,
            " collectives behind it");
      });
  agreement_->check(/*block=*/true);
  streams_->finish();
  for (auto* unit : units_) unit->hide();
  while (!reducing_.empty()) drop_gradients();
  // What the failed pass gave to compute comes before what the next one gathers.
  streams_->signal(published());
  if (gradients_incomplete_) watch_.forget(step_ + 1);
  report_due_ = agreement_->take_findings_flag() || report_due_;
  agreement_->take_new_recomputes();  // of a pass that is over
  passes_ = 0;
  recovering_ = gradients_incomplete_ = false;
}

}  // namespace sherd
