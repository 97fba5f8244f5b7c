// SPDX-License-Identifier: Apache-2.0
// The order in which units are called and computed again, as it was seen: how ranks that call
// different units make one order of it.
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <thread>

#include "shard/region.h"
#include "shard/runtime.h"

namespace sherd {
namespace {

// Note [Calls that only some ranks make]
// An order has a place for every call that any rank makes. For each place a rank says whether it
// made the call, under a recompute or outside, and whether one recompute spans this place and the
// next. What is true on one rank is true for the order: the largest of the ranks' marks. So a rank
// that had nothing for a unit leaves the unit's recompute to those that had.
enum Mark : size_t { kMade, kInside, kOutside, kJoined, kMarks };

bool is_set(const std::vector<int64_t>& marks, size_t position, Mark mark) {
  return marks[position * kMarks + mark] != 0;
}

/// Whether the rank made every call, outside any recompute.
bool is_plain(const std::vector<int64_t>& marks) {
  for (size_t i = 0; i < marks.size() / kMarks; ++i) {
    if (!is_set(marks, i, kMade) || is_set(marks, i, kInside)) return false;
  }
  return true;
}

size_t count_calls(const CallOrder& order) {
  return static_cast<size_t>(std::count_if(
      order.begin(), order.end(), [](const CallEvent& visit) { return visit.enter; }));
}

/// Numbers the recomputes by the position of their first call. What lies between two calls of one
/// is part of it, called or not.
CallOrder number_recomputes(CallOrder order) {
  std::map<int32_t, std::pair<size_t, size_t>> ends;  // of each: its first and last call
  for (size_t i = 0; i < order.size(); ++i) {
    if (!order[i].enter || order[i].recompute == kNone) continue;
    ends.try_emplace(order[i].recompute, i, i).first->second.second = i;
  }
  for (const auto& [number, range] : ends) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(range.first);
    const auto position = static_cast<int32_t>(count_calls(CallOrder(order.begin(), begin)));
    for (size_t i = range.first; i <= range.second; ++i) {
      if (order[i].enter) order[i].recompute = position;
    }
  }
  return order;
}

/// The order with recomputes where marks have them, each numbered by its first position.
CallOrder with_recomputes(CallOrder order, const std::vector<int64_t>& marks) {
  size_t position = 0;
  int32_t first = kNone;
  bool joined = false;  // with the call before
  for (auto& visit : order) {
    visit.recompute = kNone;
    if (!visit.enter) continue;
    if (!joined) first = static_cast<int32_t>(position);
    const bool joins = is_set(marks, position, kJoined);
    if (joined || joins || is_set(marks, position, kInside)) visit.recompute = first;
    joined = joins;
    ++position;
  }
  return order;
}

/// Adds the marks of an order's recomputes.
void mark_recomputes(const CallOrder& order, std::vector<int64_t>& marks) {
  size_t position = 0;
  int32_t before = kNone;
  for (const auto& visit : order) {
    if (!visit.enter) continue;
    if (visit.recompute != kNone) {
      marks[position * kMarks + kInside] = 1;
      if (visit.recompute == before) marks[(position - 1) * kMarks + kJoined] = 1;
    }
    before = visit.recompute;
    ++position;
  }
}

CallOrder without_recomputes(CallOrder order) {
  for (auto& visit : order) visit.recompute = kNone;
  return order;
}

/// A call that no rank made, of a unit that is called elsewhere, is where the order used to have
/// it: it is dropped. Returns too where each position has gone.
std::pair<CallOrder, std::vector<int32_t>> without_skipped(
    const CallOrder& order, const std::vector<int64_t>& marks, size_t units) {
  std::vector<bool> called(units);
  size_t position = 0;
  for (const auto& visit : order) {
    if (visit.enter && is_set(marks, position++, kMade)) {
      called[static_cast<size_t>(visit.unit)] = true;
    }
  }
  CallOrder result;
  std::vector<int32_t> remapped_positions;
  std::vector<bool> kept;  // of the visits that are open
  int32_t next = 0;
  for (const auto& visit : order) {
    if (visit.enter) {
      const bool made = is_set(marks, remapped_positions.size(), kMade);
      kept.push_back(made || !called[static_cast<size_t>(visit.unit)]);
      remapped_positions.push_back(kept.back() ? next++ : kNone);
    }
    if (kept.back()) result.push_back(visit);
    if (!visit.enter) kept.pop_back();
  }
  return {number_recomputes(std::move(result)), std::move(remapped_positions)};
}

}  // namespace

// ---- what this rank sees ------------------------------------------------------------------------

/// Notes the recompute that this thread is in, if any, at a call where the program expects the
/// given one. Returns whether the unit's parameters must be kept for it: the program has them
/// gathered together with those of other units only where it expects the recompute.
bool Runtime::notice_recompute(int32_t expected) {
  const auto region = pass_->train ? recorded_region() : nullptr;
  if (recomputes_.empty() || recomputes_.back().region != region) drop_copy_of_lone_call();
  if (!region) return false;
  const auto known = std::find_if(recomputes_.begin(), recomputes_.end(), [&](const auto& seen) {
    return seen.region == region;
  });
  if (known == recomputes_.end()) {
    const bool copies = order_agreed_ && !recording_order_ && expected == kNone;
    recomputes_.push_back({region, expected, copies});
    return copies;
  }
  // It began where another one was expected: all ranks must find a new order together.
  if (!known->copies && known->expected != expected && order_agreed_) start_recording_order();
  return known->copies;
}

void Runtime::copy_parameters(const Frame& frame) {
  auto& copies = pass_->copies[frame.copied_position];
  for (const auto& group : frame.unit->groups()) {
    if (group->layout().needs_gather())
      copies.push_back(group->transfers().parameter_slot().clone());
  }
}

/// A recompute around one call needs no copy: the call is computed again where its backward is.
void Runtime::drop_copy_of_lone_call() {
  if (recomputes_.empty() || !recomputes_.back().copies) return;
  const auto& region = recomputes_.back().region;
  int32_t position = kNone;
  int64_t calls = 0;
  for (const auto& call : made_) {
    if (call.recompute != region) continue;
    position = call.position;
    ++calls;
  }
  if (calls == 1) pass_->copies.erase(position);
}

void Runtime::forget_calls() noexcept {
  made_.clear();
  recomputes_.clear();
}

/// What this rank has to say of each position; see the note.
std::vector<int64_t> Runtime::call_marks(const CallOrder& order) const {
  std::vector<int64_t> marks(count_calls(order) * kMarks);
  std::map<const Region*, std::pair<int32_t, int32_t>> spans;
  for (const auto& [position, region] : made_) {
    auto* mark = &marks[static_cast<size_t>(position) * kMarks];
    mark[kMade] = 1;
    mark[region ? kInside : kOutside] = 1;
    if (!region) continue;
    auto& [first, last] = spans.try_emplace(region.get(), position, position).first->second;
    first = std::min(first, position);
    last = std::max(last, position);
  }
  for (const auto& [region, span] : spans) {
    for (int32_t i = span.first; i < span.second; ++i) {
      marks[static_cast<size_t>(i) * kMarks + kJoined] = 1;
    }
  }
  return marks;
}

// ---- a rank without data ------------------------------------------------------------------------

// Note [Following]
// A rank without data runs the program, but the others may call units that the program does not
// expect, and need its shards for that. So it follows: it joins each of their records, whatever it
// says, takes part in the gathers of unforeseen units, and goes on to what comes next on all ranks,
// a new order or the backward. These gathers run on the communicators of reductions, which the
// forward does not use: on those of gathers this rank may be ahead of the others.

/// Before a pass that follows. On CUDA the shards are there: what is gathered on the side does not
/// wait for the current stream.
void Runtime::finish_for_following() {
  if (!world_.device().is_cuda()) return;
  const c10::impl::VirtualGuardImpl guard(world_.device().type());
  guard.synchronizeStream(guard.getStream(world_.device()));
}

/// Takes part in what the others do on the side, as far as it is known or, with `block`, until it
/// is known what they do next.
void Runtime::follow_others(bool block) {
  const BackwardFlags flags{
      backwards_done_ == 0, backwards_done_ + 1 == micro_batches_, /*kept=*/true};
  // Of a backward that does not communicate the others say nothing.
  if (!follows_ || followed_ || (order_agreed_ && !communicates(program_->backward(flags)))) return;
  // On CUDA the current stream may wait for gathers that the others have not come to yet.
  std::optional<c10::StreamGuard> side;
  if (world_.device().is_cuda()) {
    side.emplace(c10::impl::VirtualGuardImpl(world_.device().type())
                     .getStreamFromGlobalPool(world_.device(), /*isHighPriority=*/false));
  }
  while (!followed_) {
    if (!agreement_->is_following()) agreement_->start_following(watch_.has_findings());
    // The others finish what the program has issued before they ask for more: that takes this rank.
    while (block && !agreement_->arrived()) {
      streams_->pump();
      std::this_thread::sleep_for(kFollowPause);
    }
    if (!agreement_->arrived()) return;
    const auto next = agreement_->followed();
    follows_ = next.has_value();
    if (!follows_) return;  // no rank has data
    if (next->kind == Agreement::Kind::unforeseen && next->detail > 0) {
      gather_unforeseen(*units_[static_cast<size_t>(next->detail - 1)]);
      continue;
    }
    followed_ = next;
    recording_order_ = next->kind == Agreement::Kind::unforeseen;
    if (recording_order_) observed_order_ = order();
  }
}

// ---- what all ranks make of it ------------------------------------------------------------------

/// The first training pass tells all ranks the order of the units; so does a pass that went another
/// way than the program. Collective.
void Runtime::adopt_observed_order() {
  auto order = without_recomputes(recording_order_ ? observed_order_ : this->order());
  const auto text = order_text(order);
  const bool first = !order_agreed_ && pass_->train;
  const auto mine = call_marks(order);
  Agreement::Record record{
      .kind = first ? Agreement::Kind::order : Agreement::Kind::unforeseen,
      .number = first ? 0 : issued_};
  record.new_recomputes = !is_plain(mine);
  const bool has_followed = std::exchange(followed_, std::nullopt).has_value();
  order = order_from(agreement_->agree_on_order(
      record,
      first ? "calls its units for the first time" : "calls its units in another order than before",
      text, idle_, has_followed));
  order_agreed_ = order_agreed_ || first;
  // If every rank made all calls outside recomputes, their marks are equal: no exchange is needed.
  const bool alike = !agreement_->take_new_recomputes();
  const auto marks = alike ? mine : agreement_->max_of(call_marks(order));
  if (pass_->train) check_recomputes(order, marks);
  order = with_recomputes(std::move(order), marks);
  if (order == this->order()) return;
  auto [shorter, remapped_positions] = without_skipped(order, marks, units_.size());
  if (pass_->train) {
    build(std::move(shorter));
  } else {
    // Training goes on in its own order.
    evaluation_ = std::move(shorter);
    build(program_->order());
  }
  program_agreed_ = true;
  pass_->program = program_;
  pass_->remapped_positions = std::move(remapped_positions);
}

/// Ranks that call a unit call it under a recompute, or none does.
void Runtime::check_recomputes(const CallOrder& order, const std::vector<int64_t>& marks) {
  size_t position = 0;
  for (const auto& visit : order) {
    if (!visit.enter) continue;
    const size_t here = position++;
    if (!is_set(marks, here, kInside) || !is_set(marks, here, kOutside)) continue;
    const auto mine = call_marks(order);
    const bool inside = is_set(mine, here, kInside);
    agreement_->refuse(
        inside, is_set(mine, here, kOutside),
        c10::str(
            "calls unit '", units_[static_cast<size_t>(visit.unit)]->name(), "' ",
            inside ? "under a recompute" : "outside any recompute"));
  }
}

/// A rank has computed units again together that the program takes one by one, from copies of their
/// parameters. The next pass has a program for it. Collective.
void Runtime::adopt_new_recomputes(const Pass& pass) {
  const auto& known = pass.program->order(/*train=*/true);
  auto mine = pass.new_recomputes;
  mine.resize(count_calls(known) * kMarks);  // none: as the program has them
  auto marks = agreement_->max_of(mine);
  // Captured addresses, or a newer order of calls: it stays with copies.
  if (!addresses_pinned_by_.empty() || pass.program != next_program_) return;
  mark_recomputes(known, marks);
  const auto order = with_recomputes(known, marks);
  if (order != known) build(order);
}

// ---- orders in words ----------------------------------------------------------------------------

std::string Runtime::order_text(const CallOrder& order) const {
  std::ostringstream out;
  for (const auto& visit : order) {
    out << (visit.enter ? "enters unit " : "leaves unit ") << visit.unit << " ('"
        << units_[static_cast<size_t>(visit.unit)]->name() << "')\n";
  }
  return out.str();
}

CallOrder Runtime::order_from(const std::string& text) const {
  CallOrder order;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string what, word;
    CallEvent visit;
    words >> what >> word >> visit.unit;
    visit.enter = what == "enters";
    order.push_back(visit);
  }
  return order;
}

}  // namespace sherd
