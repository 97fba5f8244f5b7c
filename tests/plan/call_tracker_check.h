// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "plan/call_generator.h"
#include "plan/call_tracker.h"

namespace sherd::testing {

/// Drives a CallTracker through calls and checks each of its answers against its header. Keeps the
/// first broken promise in words. Serves the property tests and the fuzz target.
class CallTrackerCheck {
 public:
  struct Options {
    bool train = true;
    bool known = true;
  };
  CallTrackerCheck(const CallOrder& order, Options options)
      : order_(order), options_(options), section_(forward_section(order)) {
    tracker_.begin(section_, order_, options.train, options.known);
    for (size_t i = 0; i < section_.boundaries.size(); ++i) {
      const auto& boundary = section_.boundaries[i];
      if (boundary.kind == Boundary::Kind::exit) exits_[boundary.position] = i;
    }
  }
  CallTrackerCheck(const CallTrackerCheck&) = delete;
  CallTrackerCheck& operator=(const CallTrackerCheck&) = delete;

  const CallTracker& tracker() const { return tracker_; }
  const std::string& broken() const { return broken_; }
  bool has_skipped() const { return skipped_; }

  /// Makes the call and those within it. `wrong_leave`: see leave_wrongly().
  void make(
      const Call& call, const std::function<bool()>& wrong_leave = [] { return false; }) {
    enter(call.unit, call.recompute);
    for (const auto& inner : call.calls) make(inner, wrong_leave);
    if (wrong_leave()) leave_wrongly(call.unit);
    leave();
  }

  void enter(int32_t unit, int64_t recompute) {
    const auto expected = find(unit);
    const auto entered = tracker_.enter(unit, recompute);
    if (entered.boundary != expected) fail("unit ", unit, " is entered at another boundary");
    run(entered.skipped, entered.boundary);
    check_needless_copy(entered.needless_copy, recompute);
    Frame frame{unit, entered.position};
    if (entered.boundary) {
      frame.planned = section_.boundaries[*entered.boundary].position;
      frame.copies = notice(recompute, order_[*entered.boundary].recompute);
    } else {
      deviated_ = true;
      unforeseen_.push_back(entered.position);
    }
    if (tracker_.has_deviated() != deviated_) {
      fail("after the entry of unit ", unit, " the pass has ", deviated_ ? "not " : "", "deviated");
    }
    if (recompute != 0) ++calls_under_[recompute];
    frames_.push_back(frame);
    made_.push_back({entered.position, recompute});
    events_.emplace_back(entered.position, true);
    if (!tracker_.is_open()) fail("no call is under way after an entry");
  }

  void leave() {
    const auto frame = frames_.back();
    frames_.pop_back();
    const auto left = tracker_.leave(frame.unit);
    if (!left.was_last) fail("unit ", frame.unit, " was entered last, and the tracker denies it");
    run(left.skipped, left.boundary);
    std::optional<size_t> exit;
    if (frame.planned != kNone) exit = exits_.at(frame.planned);
    if (left.boundary != exit) fail("unit ", frame.unit, " is left at another boundary");
    if (left.position_to_copy != (frame.copies ? frame.position : kNone)) {
      fail("position ", left.position_to_copy, " is to be copied");
    }
    if (frame.copies) copied_[frame.position] = false;
    events_.emplace_back(frame.position, false);
    if (tracker_.is_open() == frames_.empty()) fail("is_open is wrong after an exit");
    // A foreseen outermost call covers the whole section.
    if (frames_.empty() && exit && cursor_ != section_.boundaries.size()) {
      fail("boundaries are left after the root: ", cursor_, " of ", section_.boundaries.size());
    }
  }

  /// Leaves a unit other than the one entered last: nothing may change.
  void leave_wrongly(int32_t unit) {
    const auto before = tracker_.observed();
    const auto left = tracker_.leave(unit + 1);
    if (left.was_last || left.boundary || left.skipped.begin != left.skipped.end ||
        left.position_to_copy != kNone || !tracker_.is_open() || tracker_.observed() != before) {
      fail("the exit of a unit that was not entered last changed something");
    }
  }

  /// Ends the pass and returns the first broken promise, or nothing.
  std::string finish() {
    run(tracker_.skip_rest(), std::nullopt);
    if (cursor_ != section_.boundaries.size()) fail("boundaries were never returned");
    check_needless_copy(tracker_.needless_copy(), 0);
    check_copies();
    check_made();
    if (deviated_) {
      check_observed();
    } else if (tracker_.observed() != order_) {
      fail("the observed order is another one, though nothing deviated");
    }
    return broken_;
  }

 private:
  struct Frame {
    int32_t unit = kNone;
    int32_t position = kNone;  // in the observed order
    int32_t planned = kNone;   // in the section; none: unforeseen
    bool copies = false;
  };
  struct SeenRecompute {
    int32_t expected = kNone;
    bool copies = false;
  };

  template <class... Args>
  void fail(const Args&... args) {
    if (!broken_.empty()) return;
    std::ostringstream out;
    (out << ... << args);
    out << "\norder:";
    for (const auto& event : order_) {
      out << ' ' << (event.enter ? "" : "/") << event.unit;
      if (event.enter && event.recompute != kNone) out << "~" << event.recompute;
    }
    out << "\ncalls so far (position, recompute):";
    for (const auto& [position, recompute] : made_)
      out << " (" << position << ", " << recompute << ")";
    out << "\ntrain " << options_.train << ", known " << options_.known;
    broken_ = out.str();
  }

  /// The first entry of the unit that is still to come within the call under way. Nothing within an
  /// unforeseen call is foreseen.
  std::optional<size_t> find(int32_t unit) const {
    size_t end = section_.boundaries.size();
    if (!frames_.empty()) {
      if (frames_.back().planned == kNone) return std::nullopt;
      end = exits_.at(frames_.back().planned);
    }
    for (size_t i = cursor_; i < end; ++i) {
      const auto& boundary = section_.boundaries[i];
      if (boundary.kind == Boundary::Kind::enter && boundary.unit == unit) return i;
    }
    return std::nullopt;
  }

  /// What is returned must continue where the last answer ended.
  void run(CallTracker::Range skipped, std::optional<size_t> boundary) {
    if (skipped.end < skipped.begin) fail("a range ends before it begins");
    if (skipped.begin != skipped.end) {
      skipped_ = true;
      if (skipped.begin != cursor_) fail("skipped from ", skipped.begin, " instead of ", cursor_);
      cursor_ = skipped.end;
    }
    if (!boundary) return;
    if (*boundary != cursor_) fail("boundary ", *boundary, " instead of ", cursor_);
    ++cursor_;
  }

  /// Returns whether a call under this recompute must be copied.
  bool notice(int64_t recompute, int32_t expected) {
    if (!options_.train || recompute == 0) return false;
    const bool unexpected = options_.known && !deviated_ && expected == kNone;
    const auto [seen, is_new] =
        recomputes_.try_emplace(recompute, SeenRecompute{expected, unexpected});
    const auto& first = seen->second;
    if (!is_new && !first.copies && first.expected != expected && options_.known) deviated_ = true;
    return first.copies;
  }

  void check_needless_copy(int32_t position, int64_t recompute) {
    if (position == kNone) return;
    const auto copy = copied_.find(position);
    if (copy == copied_.end()) return fail("the copy of ", position, " was never asked for");
    copy->second = true;
    for (const auto& call : made_) {
      if (call.position == position && call.recompute == recompute) {
        fail("the recompute of needless copy ", position, " is still under way");
      }
    }
  }

  /// A copy is needless if and only if its recompute has no other call.
  void check_copies() {
    if (tracker_.has_copies() != !copied_.empty()) fail("has_copies is wrong");
    for (const auto& [position, recompute] : made_) {
      const auto copy = copied_.find(position);
      if (copy == copied_.end()) continue;
      if (copy->second != (calls_under_.at(recompute) == 1)) {
        fail("the copy of ", position, " is ", copy->second ? "" : "not ", "called needless");
      }
    }
  }

  void check_made() {
    const auto& made = tracker_.made();
    if (made.size() != made_.size()) return fail(made.size(), " calls instead of ", made_.size());
    for (size_t i = 0; i < made.size(); ++i) {
      if (made[i].position != made_[i].position || made[i].recompute != made_[i].recompute) {
        return fail("call ", i, " is not as it was made");
      }
      if (i > 0 && made[i].position <= made[i - 1].position) fail("positions do not grow");
    }
  }

  /// Without the calls that were not made, the observed order is what was done; without the
  /// unforeseen ones, it is the order of the program.
  void check_observed() {
    std::map<int32_t, bool> made;
    for (const auto& call : made_) made[call.position] = true;
    std::map<int32_t, bool> unforeseen;
    for (const int32_t position : unforeseen_) unforeseen[position] = true;
    std::vector<std::pair<int32_t, bool>> events;
    CallOrder foreseen;
    std::vector<std::pair<int32_t, int32_t>> open;  // unit and position
    int32_t next = 0;
    for (const auto& event : tracker_.observed()) {
      if (event.enter) open.emplace_back(event.unit, next++);
      if (open.empty() || open.back().first != event.unit) return fail("calls do not nest");
      const int32_t position = open.back().second;
      if (made.contains(position)) events.emplace_back(position, event.enter);
      if (!unforeseen.contains(position)) foreseen.push_back({event.unit, event.enter});
      if (!event.enter) open.pop_back();
    }
    if (!open.empty()) fail("a call has no end");
    if (events != events_) fail("the observed order does not have the calls as they were made");
    if (foreseen != without_recomputes(order_)) fail("the observed order has lost the program's");
  }

  const CallOrder order_;
  const Options options_;
  const Section section_;
  CallTracker tracker_;
  std::map<int32_t, size_t> exits_;  // by position
  size_t cursor_ = 0;                // boundaries that were returned
  bool skipped_ = false;
  bool deviated_ = false;
  std::vector<Frame> frames_;
  std::vector<MadeCall> made_;
  std::vector<int32_t> unforeseen_;
  std::vector<std::pair<int32_t, bool>> events_;  // position and whether it is an entry
  std::map<int64_t, SeenRecompute> recomputes_;
  std::map<int64_t, int> calls_under_;
  std::map<int32_t, bool> copied_;  // by position: whether the copy was called needless
  std::string broken_;
};

/// Makes the calls again in a known order: they must be foreseen, at the positions given, and
/// nothing is copied.
inline std::string check_repetition(
    const CallOrder& order, const Call& calls, const std::vector<int32_t>& positions) {
  CallTrackerCheck check(order, {});
  check.make(calls);
  if (auto broken = check.finish(); !broken.empty()) return "when repeated: " + broken;
  const auto& tracker = check.tracker();
  if (tracker.has_deviated()) return "calls deviate from the order that came of them";
  if (tracker.has_copies()) return "calls need copies in the order that came of them";
  for (size_t i = 0; i < positions.size(); ++i) {
    if (tracker.made()[i].position != positions[i]) return "a call has not moved as told";
  }
  return {};
}

/// Checks what becomes of the calls of ranks that have observed the same order: joined, without
/// what no rank did, each rank's calls are foreseen in it.
inline std::string check_agreed_order(
    const CallOrder& observed,
    const std::vector<Call>& calls,
    const std::vector<std::vector<MadeCall>>& made) {
  const auto order = without_recomputes(observed);
  auto marks = CallMarks::none(order);
  for (const auto& one : made) marks = marks.joined_with(CallMarks::of(order, one));
  if (marks.contradiction()) return {};  // an error of the model's
  const auto [shorter, moved] = without_skipped(with_recomputes(order, marks), marks, 64);
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    std::vector<int32_t> positions;
    for (const auto& call : made[rank]) {
      positions.push_back(moved[static_cast<size_t>(call.position)]);
    }
    if (auto broken = check_repetition(shorter, calls[rank], positions); !broken.empty()) {
      return broken;
    }
  }
  return {};
}

/// Checks the tracker with an order and calls that `choose` decides on. Returns the first broken
/// promise in words, or nothing.
inline std::string check_random_calls(const Choose& choose) {
  CallGenerator generator(choose);
  const auto tree = generator.tree();
  const auto order = order_of(tree);
  const CallTrackerCheck::Options options{.train = choose(4) != 1, .known = choose(4) != 1};
  const auto wrong_leave = [&] { return choose(8) == 1; };

  CallTrackerCheck same(order, options);
  same.make(tree, wrong_leave);
  if (auto broken = same.finish(); !broken.empty()) return broken;
  if (same.tracker().has_deviated() || same.has_skipped() || same.tracker().has_copies()) {
    return "the calls of the order itself deviate, skip or copy";
  }

  std::vector<Call> calls;
  std::vector<std::vector<MadeCall>> made;
  for (int rank = 0; rank < 3; ++rank) {
    const auto changed = generator.changed(tree);
    CallTrackerCheck check(order, options);
    check.make(changed, wrong_leave);
    const bool again = choose(4) == 1;
    if (again) check.make({.unit = 0, .calls = {{.unit = 1}}});
    if (auto broken = check.finish(); !broken.empty()) return broken;
    const auto& tracker = check.tracker();
    if (!tracker.has_deviated()) {
      calls.push_back(changed);
      made.push_back(tracker.made());
    }
    if (again) continue;
    auto broken = check_agreed_order(tracker.observed(), {changed}, {tracker.made()});
    if (!broken.empty()) return broken;
  }
  return check_agreed_order(order, calls, made);
}

}  // namespace sherd::testing
