// SPDX-License-Identifier: Apache-2.0
#include "plan/abstract_machine.h"

#include <algorithm>
#include <utility>

namespace sherd::testing {
namespace {

using What = Use::What;

size_t at(int32_t number) {
  return static_cast<size_t>(number);
}

bool is_memory(const Use& use) {
  return use.what == What::parameters || use.what == What::transposed ||
         use.what == What::gradients;
}

void mix(uint64_t& hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  hash ^= hash >> 29;
}

void mix(uint64_t& hash, const Sum& sum) {
  for (const auto& share : sum.of) {
    const uint32_t low = share.calls | static_cast<uint32_t>(share.inner) << 8;
    const uint32_t high = share.outer | static_cast<uint32_t>(share.divided) << 8;
    mix(hash, low | high << 16);
  }
}

}  // namespace

std::string Violation::to_text() const {
  return section +
         (instruction == kNone ? std::string(", at the end")
                               : ", instruction " + std::to_string(instruction)) +
         ": " + why;
}

AbstractMachine::AbstractMachine(const Timeline& timeline)
    : timeline_(&timeline),
      cells_(at(timeline.cells())),
      weights_(timeline.groups().size()),
      main_weights_(timeline.groups().size()),
      scales_(timeline.groups().size()),
      main_gradients_(timeline.groups().size()),
      computing_(timeline.program().units().size(), kNone),
      computed_(timeline.program().units().size()),
      readers_(at(timeline.resources())),
      writers_(at(timeline.resources())) {}

bool AbstractMachine::can_start(size_t stream) const {
  if (running_[stream] || at(done_[stream]) == timeline_->queue(stream).size()) return false;
  const auto& issued = timeline_->issued()[at(next(stream))];
  for (size_t s = 0; s < kStreams; ++s) {
    if (done_[s] < issued.after[s]) return false;
  }
  return true;
}

bool AbstractMachine::is_done(int32_t number) const {
  const auto& issued = timeline_->issued()[at(number)];
  const auto stream = static_cast<size_t>(issued.instruction->stream);
  return done_[stream] > issued.issued_before[stream];
}

void AbstractMachine::start(size_t stream) {
  const auto& issued = timeline_->issued()[at(next(stream))];
  if (!issued.fault.empty()) fail(issued, issued.fault);
  running_[stream] = true;
  for (const auto& use : issued.uses) take(issued, use);
  check(issued);
  // From here to the end of `compute` the unit reads its parameters.
  if (issued.until == kNone || is_done(issued.until)) return;
  auto& since = computing_[at(issued.instruction->unit)];
  if (since != kNone) return;
  since = next(stream);
  for (const auto& use : issued.uses) occupy(use, 1);
}

void AbstractMachine::finish(size_t stream) {
  const auto& issued = timeline_->issued()[at(next(stream))];
  apply(issued);
  for (const auto& use : issued.uses) occupy(use, -1);
  running_[stream] = false;
  ++done_[stream];
}

/// Begins a use: no other use may write what it reads, or read or write what it writes.
void AbstractMachine::take(const Issued& issued, const Use& use) {
  for (int32_t resource = use.begin; resource < use.end; ++resource) {
    if (writers_[at(resource)] > 0) {
      fail(issued, timeline_->resource_name(resource) + " are being written");
    }
    if (use.write && readers_[at(resource)] > 0) {
      fail(issued, timeline_->resource_name(resource) + " are being read");
    }
    if (!use.write || !is_memory(use)) continue;
    auto& held_by = cells_[at(resource)].holder;
    const int32_t self = holder_of(issued, use);
    if (held_by != kNone && held_by != self) {
      fail(issued, "overwrites " + holder_name(held_by) + ", which are still needed");
    }
    held_by = self;
  }
  occupy(use, 1);
}

void AbstractMachine::occupy(const Use& use, int by) {
  auto& counts = use.write ? writers_ : readers_;
  for (int32_t resource = use.begin; resource < use.end; ++resource) {
    counts[at(resource)] = static_cast<int16_t>(counts[at(resource)] + by);
  }
}

int32_t AbstractMachine::holder_of(const Issued& issued, const Use& use) const {
  if (use.what == What::parameters) return holder(Holder::parameters, use.group);
  if (use.what == What::transposed) return holder(Holder::transposed, use.group);
  const auto& facts = timeline_->groups()[at(use.group)];
  const auto action = issued.instruction->action;
  const bool outer = issued.instruction->axis == AxisKind::outer;
  const bool own = action == Action::compute || action == Action::open ||
                   (outer ? facts.gradient_outer : facts.gradient_inner);
  const bool staged = action == Action::stage || !own;
  return holder(staged ? Holder::stage : Holder::gradients, use.group);
}

std::string AbstractMachine::holder_name(int32_t number) const {
  const auto groups = static_cast<int32_t>(group_count());
  const char* const kinds[] = {
      "the parameters", "the transposed copies", "the gradients", "the staged gradients"};
  return std::string(kinds[number / groups]) + " of '" +
         timeline_->groups()[at(number % groups)].name + "'";
}

void AbstractMachine::fail(const Issued& issued, const std::string& why) const {
  const auto& section = *timeline_->sequence()[at(issued.section)];
  throw Violation{
      section.name + " (section " + std::to_string(issued.section) + ")", issued.number,
      std::string(to_text(issued.instruction->action)) + ": " + why};
}

void AbstractMachine::end_section(int32_t number) {
  const auto& section = *timeline_->sequence()[at(number)];
  const auto refuse = [&](const std::string& why) {
    throw Violation{section.name + " (section " + std::to_string(number) + ")", kNone, why};
  };
  const auto groups = static_cast<int32_t>(group_count());
  for (const auto& cell : cells_) {
    if (cell.holder == kNone) continue;
    const auto& facts = timeline_->groups()[at(cell.holder % groups)];
    const bool keeps = timeline_->program().units()[at(facts.unit)].keep_gathered;
    const bool may_stay = cell.holder < groups && keeps && section.kind == Section::Kind::forward;
    if (!may_stay) refuse(holder_name(cell.holder) + " are left over");
  }
  std::vector<int32_t> calls(computed_.size());
  for (const auto& visit : timeline_->program().order()) calls[at(visit.unit)] += visit.enter;
  const bool update = section.kind == Section::Kind::update;
  if (!update && computed_ != calls) refuse("units do not compute as often as they are called");
  if (update && std::exchange(updated_, 0) != 1) refuse("the weights are not updated once");
  std::fill(computed_.begin(), computed_.end(), 0);
}

uint64_t AbstractMachine::hash() const {
  uint64_t hash = 1;
  for (size_t s = 0; s < kStreams; ++s) {
    mix(hash, static_cast<uint64_t>(done_[s]) << 1 | static_cast<uint64_t>(running_[s]));
  }
  for (const auto& cell : cells_) {
    mix(hash, static_cast<uint64_t>(cell.content.kind) << 32 | static_cast<uint32_t>(cell.holder));
    mix(hash, static_cast<uint64_t>(cell.content.group) << 32 |
                  static_cast<uint32_t>(cell.content.version));
    mix(hash, cell.content.sum);
  }
  for (const auto& pieces : weights_) {
    for (const int32_t version : pieces) mix(hash, static_cast<uint64_t>(version));
  }
  for (const int32_t version : main_weights_) mix(hash, static_cast<uint64_t>(version));
  for (const auto& axes : scales_) {
    for (const int32_t version : axes) mix(hash, static_cast<uint64_t>(version));
  }
  for (const auto& sum : main_gradients_) mix(hash, sum);
  for (const int32_t since : computing_) mix(hash, static_cast<uint64_t>(since));
  return hash;
}

}  // namespace sherd::testing
