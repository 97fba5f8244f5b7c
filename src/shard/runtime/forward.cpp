// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/forward.h"

#include <ATen/SequenceNumber.h>
#include <c10/util/Exception.h>

#include <utility>

#include "comm/flight/flight_ring.h"
#include "shard/region.h"
#include "shard/runtime/failure.h"

namespace sherd {

void Pass::note_first_node(int32_t position) {
  const auto index = static_cast<size_t>(position);
  if (first_nodes.size() <= index) first_nodes.resize(index + 1);
  first_nodes[index] = at::sequence_number::peek();
}

void show_buffers(Unit& unit, const std::vector<at::Tensor>& buffers) {
  auto buffer = buffers.begin();
  for (const auto& group : unit.groups()) {
    group->show_bytes(group->layout().needs_gather() ? *buffer++ : at::Tensor());
  }
  unit.activity().set_gathered();
}

Forward::Forward(RuntimeParts& parts) : parts_(parts) {
  parts_.executor.set_before_wait([this](const Instruction& one) { look_while_waiting(one); });
}

void Forward::begin(bool train, bool idle) {
  const auto& world = parts_.world;
  auto& state = parts_.state;
  if (state.has_failed()) recover(parts_);
  if (!parts_.orders.is_known()) parts_.units.check_initialised();  // once is enough
  parts_.check_published();
  parts_.encode_stale_weights();
  if (parts_.program.shared() != parts_.orders.next()) parts_.use(parts_.orders.next());
  for (auto* unit : parts_.units) {
    if (unit->activity().is_gathered_outside()) unit->hide();
  }
  parts_.follower.begin(
      idle,
      idle && train && !parts_.graph.capturing && world.size() > 1 && !world.device().is_meta());
  const auto& program = *parts_.program;
  pass_ = std::make_shared<Pass>(Pass{parts_.program.shared(), train, state.weight_version()});
  const auto flags = state.forward_flags(train);
  section_ = &program.forward(flags);
  if (const auto& recorder = parts_.program.recorder()) {
    recorder->begin_section(section_->name, Section::Kind::forward);
  }
  parts_.record_section(*section_);
  calls_made_ = 0;
  parts_.agreement.begin_pass(
      train ? "a forward with gradients" : "a forward without gradients",
      flags.changed | flags.train << 1 | flags.still_gathered << 2, *section_, *pass_,
      std::nullopt);
  pass_->records_exchanges = train && program.exchanges().empty();
  parts_.exchanges.begin(pass_, Section::Kind::forward);
  calls_.begin(*section_, program.order(train), train, parts_.orders.is_known());
  parts_.executor.begin(*section_);
  state.begin_forward();
}

int32_t Forward::enter(Unit& unit) {
  record_call(unit);
  const auto entered = calls_.enter(unit.number(), recorded_region());
  drop_copy(entered.needless_copy);
  open_.push_back({&unit, entered.boundary.has_value()});
  if (entered.boundary) {
    skip(entered.skipped);
    parts_.executor.run(section_->boundaries[*entered.boundary]);
  } else {
    enter_unforeseen(open_.back());
  }
  unit.activity().enter_forward();
  parts_.exchanges.enter(entered.position, unit);
  return entered.position;
}

void Forward::record_call(const Unit& unit) {
  auto* ring = FlightRing::current();
  if (!ring || parts_.world.device().is_meta()) return;
  ring->add(
      {.type = flight::Type::call, .name = ring->name(unit.name()), .index = calls_made_++},
      flight::State::finished);
}

bool Forward::leave(Unit& unit) {
  const auto left = calls_.leave(unit.number());
  TORCH_CHECK(
      left.was_last, "[shard] unit '", unit.name(),
      "' is left, but it is not the one entered last");
  if (left.position_to_copy != kNone) copy_parameters(unit, left.position_to_copy);
  if (left.boundary) {
    skip(left.skipped);
    parts_.executor.run(section_->boundaries[*left.boundary]);
  } else {
    leave_unforeseen(unit);
  }
  open_.pop_back();
  parts_.exchanges.leave();
  unit.leave();
  return open_.empty();
}

/// Units in the range are not called on this rank. Others may call them, so what they need of this
/// rank is issued all the same.
void Forward::skip(CallTracker::Range range) {
  for (size_t i = range.begin; i < range.end; ++i) {
    const auto& boundary = section_->boundaries[i];
    parts_.executor.run(boundary);
    auto& unit = parts_.units[boundary.unit];
    if (boundary.kind == Boundary::Kind::enter) {
      unit.activity().enter_skipped();  // without a range for profilers: nothing is computed
    } else {
      unit.leave();
    }
  }
}

void Forward::run_rest() {
  skip(calls_.skip_rest());
}

// As in Note [The phase ends last]: what throws here fails the forward.
std::shared_ptr<Pass> Forward::end() {
  parts_.exchanges.end();
  drop_copy(calls_.needless_copy());
  parts_.agreement.await_record();
  auto& follower = parts_.follower;
  if (follower.is_idle()) follower.follow(calls_, parts_.orders.is_known(), /*block=*/true);
  parts_.state.note_gathered(pass_->train);
  parts_.agreement.note_findings();
  auto& orders = parts_.orders;
  if (calls_.has_deviated() || (!orders.is_known() && pass_->train)) {
    const bool has_followed = follower.take_followed().has_value();
    if (orders.adopt(*pass_, calls_, parts_.executor.issued(), follower.is_idle(), has_followed)) {
      parts_.use(orders.next());
      parts_.agreement.set_program_agreed(true);
    }
  } else if (calls_.has_copies()) {
    pass_->new_recomputes =
        CallMarks::of(parts_.program->order(pass_->train), calls_.made()).values();
  }
  calls_.reset();
  parts_.state.end_forward();
  return std::exchange(pass_, nullptr);
}

void Forward::reset() noexcept {
  open_.clear();
  pass_.reset();
  calls_.reset();
  parts_.exchanges.forget();
}

/// All ranks with data gather it together, or it is an error; those without follow (see Follower).
void Forward::enter_unforeseen(OpenCall& call) {
  parts_.agreement.records().check(/*block=*/true);
  parts_.program.streams().finish();
  parts_.agreement.call_unforeseen(*call.unit, parts_.executor.issued());
  call.buffers =
      parts_.executor.gather_now(*call.unit, parts_.state.forward_flags(pass_->train).changed);
  show_buffers(*call.unit, call.buffers);
}

void Forward::leave_unforeseen(Unit& unit) {
  if (unit.activity().calls() == 1)
    return unit.hide(/*keeps_memory=*/true);  // maybe of a gather ahead
  // Within a call of itself: the outer one goes on with what it had.
  for (auto call = open_.rbegin() + 1; call != open_.rend(); ++call) {
    if (call->unit != &unit) continue;
    return call->foreseen ? unit.show(/*backward=*/false) : show_buffers(unit, call->buffers);
  }
}

void Forward::copy_parameters(const Unit& unit, int32_t position) {
  auto& copies = pass_->copies[position];
  for (const auto& group : unit.groups()) {
    if (group->layout().needs_gather())
      copies.push_back(group->transfers().parameter_slot().clone());
  }
}

void Forward::drop_copy(int32_t position) {
  if (position != kNone) pass_->copies.erase(position);
}

/// Before the compute stream waits for parameters: sees whether ranks differ, and follows the
/// others if this rank has no data.
void Forward::look_while_waiting(const Instruction& instruction) {
  // Not on CUDA, where the host does not wait for gathers: it looks at the end of the pass. A look
  // in between would have to return at once, so ranks would find a difference at different points
  // and leave collectives behind that the others never join.
  if (!parts_.world.device().is_cuda()) parts_.agreement.await_record();
  parts_.follower.follow_until(instruction.waits, [this] {
    parts_.follower.follow(calls_, parts_.orders.is_known(), /*block=*/false);
  });
}

}  // namespace sherd
