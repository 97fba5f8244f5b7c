// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/executor.h"

#include <c10/util/Exception.h>

#include "comm/long_wait.h"

namespace sherd {

void Executor::begin(const Section& section) {
  section_ = &section;
  next_ = 0;
  issued_inside_ = 0;
}

void Executor::run(const Boundary& boundary) {
  TORCH_INTERNAL_ASSERT(
      next_ == static_cast<size_t>(boundary.begin), "[shard] a boundary of '", section_->name,
      "' begins with instruction ", boundary.begin, ", but ", next_, " comes next");
  while (next_ < static_cast<size_t>(boundary.end)) issue_next();
}

void Executor::catch_up(int64_t issued) {
  while (issued_ < issued) {
    TORCH_INTERNAL_ASSERT(
        section_ && next_ < section_->instructions.size(), "[shard] this rank has issued ", issued_,
        " collectives, another one ", issued, " in the same section '", section(), "'");
    issue_next();
  }
}

void Executor::forget() {
  reducing_.clear();
  section_ = nullptr;
  issued_inside_ = 0;
}

/// An instruction counts as issued just before it is queued. What is queued is started sooner or
/// later, also if its first start throws, so catch_up() begins with the next one.
void Executor::issue_next() {
  const auto& instruction = section_->instructions[next_];
  const bool on_compute = instruction.stream == Stream::compute;
  if (on_compute) issue_on_compute(instruction);
  if (on_compute || world_.device().is_meta()) {  // a dry run without memory has nothing to move
    ++next_;
    return;
  }
  const ProfileScope scope(units_.group(instruction).range_name(instruction.action));
  issue_beside_compute(instruction);
}

void Executor::issue_beside_compute(const Instruction& instruction) {
  const auto& group = units_.group(instruction);
  const auto axis = instruction.axis;
  using enum ProgramStreams::Kind;
  const auto issue = [&](ProgramStreams::Kind kind, auto start) {
    const auto flight_entry = record_flight(instruction, flight::State::issued);
    ++next_;
    if (kind == collective) ++issued_, ++issued_inside_;
    program_.streams().issue(instruction, kind, flight_entry, std::move(start));
  };
  const bool of_gradients = instruction.action == Action::reduce ||
                            instruction.action == Action::stage ||
                            instruction.action == Action::accumulate;
  if (of_gradients && !state_.trains()) {
    // There are none; what waits for the instruction still has to see its end.
    return issue(kernel, [](Communicator::OnStream) { return Work(); });
  }
  switch (instruction.action) {
    case Action::refresh:
      return issue(collective, [&group, axis](Communicator::OnStream stream) {
        return group.transfers().refresh(axis, stream);
      });
    case Action::gather:
      allocate_parameters(instruction);
      return issue(collective, [&group, axis, two_ways = instruction.two_ways](auto stream) {
        return group.transfers().gather(axis, two_ways, stream);
      });
    case Action::transpose:
      allocate_transposed(instruction);
      return issue(kernel, [&group](Communicator::OnStream) {
        group.transfers().transpose();
        return Work();
      });
    case Action::reduce:
      return issue(
          collective, [&group, axis, scatter = instruction.scatter](Communicator::OnStream stream) {
            return group.transfers().reduce(axis, scatter, stream);
          });
    case Action::stage:
      return issue(kernel, [&group, axis](Communicator::OnStream) {
        group.transfers().stage(axis);
        return Work();
      });
    case Action::accumulate:
      return issue(
          kernel, [this, &group, &instruction, moment = moment()](Communicator::OnStream) mutable {
            group.transfers().accumulate(instruction.axis, instruction.overwrite);
            moment.last = moment.last && !group.transfers().accumulates_after(instruction.axis);
            watch_.look_after_reduction(instruction.unit, instruction.group, moment);
            return Work();
          });
    default: TORCH_INTERNAL_ASSERT(false, "[shard] ", to_text(instruction.action), " off compute");
  }
}

/// What throws stays open in the flight recorder: that is where this rank was.
void Executor::issue_on_compute(const Instruction& instruction) {
  const auto flight_entry = record_flight(instruction, flight::State::started);
  if (const auto& recorder = program_.recorder()) {
    const auto number = recorder->begin(instruction, {});
    run_on_compute(instruction);
    recorder->end(number, {});
  } else {
    run_on_compute(instruction);
  }
  if (auto* ring = FlightRing::current()) ring->end(flight_entry);
}

/// Adds the instruction that is issued next to the flight recorder.
uint64_t Executor::record_flight(const Instruction& instruction, flight::State state) const {
  auto* ring = FlightRing::current();
  if (!ring || world_.device().is_meta()) return 0;
  const bool of_unit = instruction.unit != kNone;
  return ring->add(
      {.type = flight::Type::instruction,
       .kind = static_cast<uint8_t>(instruction.action),
       .stream = static_cast<uint8_t>(instruction.stream),
       .name = of_unit ? ring->name(units_[instruction.unit].name()) : 0,
       .index = static_cast<int32_t>(next_),
       .bytes = instruction.bytes},
      state);
}

void Executor::run_on_compute(const Instruction& instruction) {
  auto& streams = program_.streams();
  auto* unit = instruction.unit == kNone ? nullptr : &units_[instruction.unit];
  switch (instruction.action) {
    case Action::wait:
      before_wait_(instruction);
      streams.wait(instruction.waits);
      unit->show(section_->kind == Section::Kind::backward);
      streams.disturb_compute();
      return;
    case Action::compute:
      // Complete where it signals: no later call of the unit adds to its gradients.
      if (section_->kind == Section::Kind::backward && instruction.signals != kNone) {
        complete_gradients(*unit);
        const bool opened = program_->slots_of(instruction.unit).gradients != kNone;
        if (program_.is_eager() && opened) reducing_.push_back(unit);  // its reduction comes next
      }
      break;
    case Action::release: unit->hide(); break;
    case Action::open:
      streams.wait(instruction.waits);
      if (program_.is_eager()) allocate_gradients(*unit);
      for (const auto& group : unit->groups()) {
        if (group->layout().shards_gradients()) group->inbox().mark_all_unwritten();
      }
      break;
    case Action::drain:
      streams.wait(instruction.waits);
      free_gradients();
      break;
    default:
      TORCH_INTERNAL_ASSERT(false, "[shard] ", to_text(instruction.action), " is not issued");
  }
  if (instruction.signals != kNone) streams.signal(instruction.signals);
}

/// What nothing was written to is zero: in the slot for this pass, in the main gradient for the
/// step.
void Executor::complete_gradients(Unit& unit) {
  unit.activity().set_collecting(false);
  if (!state_.trains()) return;
  for (size_t i = 0; i < unit.groups().size(); ++i) {
    auto& group = *unit.groups()[i];
    if (!group.traits().trainable) continue;
    if (group.layout().shards_gradients() || state_.backward_flags().last) {
      group.inbox().zero_unwritten();
    } else {
      group.inbox().flush();
    }
    watch_.look_before_reduction(unit.number(), static_cast<int32_t>(i), moment());
  }
}

Watch::Moment Executor::moment() const {
  return {state_.step() + 1, state_.backwards_done() + 1, state_.backward_flags().last};
}

/// Other ranks have agreed to it, and no rank can make up for it later: a long wait goes on.
std::vector<at::Tensor> Executor::gather_now(const Unit& unit, bool refresh) {
  static const std::function<void()> look_at_nothing = [] {};
  const LongWaitScope undisturbed(look_at_nothing);
  std::vector<at::Tensor> buffers;
  for (const auto& group : unit.groups()) {
    if (refresh && group->layout().needs_refresh()) group->transfers().refresh_now();
    if (group->layout().needs_gather()) buffers.push_back(group->transfers().gather_now());
    ++issued_;
  }
  return buffers;
}

/// Eager: what is allocated here may have been compute's a moment ago.
void Executor::allocate_parameters(const Instruction& instruction) {
  if (!program_.is_eager()) return;
  units_.group(instruction).transfers().allocate_parameter_slot();
  program_.streams().join(instruction.stream);
}

/// Eager: the same.
void Executor::allocate_transposed(const Instruction& instruction) {
  if (!program_.is_eager()) return;
  units_.group(instruction).transfers().allocate_transposed_slot();
  program_.streams().join(instruction.stream);
}

/// Eager: compute has waited for all reductions but the last that was begun.
void Executor::allocate_gradients(Unit& unit) {
  while (reducing_.size() > 1) free_oldest_gradients();
  for (const auto& group : unit.groups()) group->transfers().allocate_gradient_slot();
}

void Executor::free_oldest_gradients() {
  for (const auto& group : reducing_.front()->groups()) group->transfers().free_gradient_slot();
  reducing_.pop_front();
}

void Executor::free_gradients() {
  while (!reducing_.empty()) free_oldest_gradients();
}

}  // namespace sherd
