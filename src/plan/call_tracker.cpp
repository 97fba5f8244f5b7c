// SPDX-License-Identifier: Apache-2.0
#include "plan/call_tracker.h"

#include <algorithm>

namespace sherd {

void CallTracker::begin(const Section& section, const CallOrder& order, bool train, bool known) {
  reset();
  section_ = &section;
  order_ = &order;
  train_ = train;
  known_ = known;
}

/// The vectors keep their memory: passes are alike.
void CallTracker::reset() {
  section_ = nullptr;
  order_ = nullptr;
  cursor_ = 0;
  frames_.clear();
  deviated_ = false;
  observed_.clear();
  entered_ = 0;
  made_.clear();
  recomputes_.clear();
}

CallTracker::Entered CallTracker::enter(int32_t unit, int64_t recompute) {
  Entered entered;
  Frame frame{unit};
  if (const auto ahead = find_ahead(unit)) {
    entered.skipped = skip(*ahead);
    entered.boundary = cursor_;
    const auto& boundary = section_->boundaries[cursor_];
    if (recomputes_.empty() || recomputes_.back().number != (train_ ? recompute : 0)) {
      entered.needless_copy = needless_copy();
    }
    const bool copies = notice_recompute(train_ ? recompute : 0, (*order_)[cursor_].recompute);
    frame.position = boundary.position;
    entered.position = deviated_ ? entered_++ : boundary.position;
    if (copies) frame.position_to_copy = entered.position;
    ++cursor_;
  } else {
    start_recording_order();
    entered.position = entered_++;
  }
  if (deviated_) observed_.push_back({unit, true});
  frames_.push_back(frame);
  made_.push_back({entered.position, recompute});
  return entered;
}

CallTracker::Left CallTracker::leave(int32_t unit) {
  if (frames_.empty() || frames_.back().unit != unit) return {};
  const auto frame = frames_.back();
  frames_.pop_back();
  Left left{.was_last = true, .position_to_copy = frame.position_to_copy};
  if (frame.position != kNone) {
    size_t exit = cursor_;
    while (section_->boundaries[exit].kind != Boundary::Kind::exit ||
           section_->boundaries[exit].position != frame.position) {
      ++exit;
    }
    left.skipped = skip(exit);
    left.boundary = cursor_++;
  }
  if (deviated_) observed_.push_back({unit, false});
  return left;
}

/// Returns the next boundary at which the unit is entered, if it lies before the end of the open
/// call.
std::optional<size_t> CallTracker::find_ahead(int32_t unit) const {
  // A call within one that was not foreseen can't have been either.
  if (!frames_.empty() && frames_.back().position == kNone) return std::nullopt;
  const int32_t inside = frames_.empty() ? kNone : frames_.back().position;
  const auto& boundaries = section_->boundaries;
  for (size_t i = cursor_; i < boundaries.size(); ++i) {
    const auto& boundary = boundaries[i];
    if (boundary.kind == Boundary::Kind::exit && boundary.position == inside) return std::nullopt;
    if (boundary.kind == Boundary::Kind::enter && boundary.unit == unit) return i;
  }
  return std::nullopt;
}

CallTracker::Range CallTracker::skip(size_t until) {
  const Range range{cursor_, until};
  for (; cursor_ < until; ++cursor_) {
    if (!deviated_) continue;
    observed_.push_back((*order_)[cursor_]);
    if (observed_.back().enter) ++entered_;
  }
  return range;
}

CallTracker::Range CallTracker::skip_rest() {
  return skip(section_->boundaries.size());
}

void CallTracker::note_other_order() {
  start_recording_order();
}

void CallTracker::start_recording_order() {
  if (deviated_) return;
  deviated_ = true;
  observed_.assign(order_->begin(), order_->begin() + static_cast<std::ptrdiff_t>(cursor_));
  entered_ = static_cast<int32_t>(count_calls(observed_));
}

/// Notes the recompute around a call for which the program expects the given one. Returns whether
/// the call's parameters must be copied for it: the program gathers them together with those of
/// other calls only where it expects the recompute.
bool CallTracker::notice_recompute(int64_t recompute, int32_t expected) {
  if (recompute == 0) return false;
  const auto seen = std::find_if(recomputes_.begin(), recomputes_.end(), [&](const auto& one) {
    return one.number == recompute;
  });
  if (seen == recomputes_.end()) {
    const bool copies = known_ && !deviated_ && expected == kNone;
    recomputes_.push_back({recompute, expected, copies});
    return copies;
  }
  // It began where another one was expected: all ranks must find a new order together.
  if (!seen->copies && seen->expected != expected && known_) start_recording_order();
  return seen->copies;
}

bool CallTracker::has_copies() const {
  return std::any_of(
      recomputes_.begin(), recomputes_.end(), [](const auto& seen) { return seen.copies; });
}

/// A recompute around one call needs no copy: the call is recomputed where its backward is.
int32_t CallTracker::needless_copy() const {
  if (recomputes_.empty() || !recomputes_.back().copies) return kNone;
  int32_t position = kNone;
  for (const auto& call : made_) {
    if (call.recompute != recomputes_.back().number) continue;
    if (position != kNone) return kNone;
    position = call.position;
  }
  return position;
}

}  // namespace sherd
