// SPDX-License-Identifier: Apache-2.0
#include "plan/call_marks.h"

#include <algorithm>
#include <map>

namespace sherd {

size_t count_calls(const CallOrder& order) {
  return static_cast<size_t>(std::count_if(
      order.begin(), order.end(), [](const CallEvent& event) { return event.enter; }));
}

CallMarks CallMarks::none(const CallOrder& order) {
  return CallMarks(std::vector<int64_t>(count_calls(order) * kMarks));
}

CallMarks CallMarks::of(const CallOrder& order, const std::vector<MadeCall>& made) {
  auto marks = none(order);
  std::map<int64_t, std::pair<int32_t, int32_t>> spans;  // first and last call of each recompute
  for (const auto& [position, recompute] : made) {
    marks.at(position, kMade) = 1;
    marks.at(position, recompute != 0 ? kInside : kOutside) = 1;
    if (recompute == 0) continue;
    auto& [first, last] = spans.try_emplace(recompute, position, position).first->second;
    first = std::min(first, position);
    last = std::max(last, position);
  }
  for (const auto& [recompute, span] : spans) {
    for (int32_t i = span.first; i < span.second; ++i) marks.at(i, kJoined) = 1;
  }
  return marks;
}

CallMarks CallMarks::of_recomputes(const CallOrder& order) {
  auto marks = none(order);
  int32_t position = 0;
  int32_t before = kNone;
  for (const auto& event : order) {
    if (!event.enter) continue;
    if (event.recompute != kNone) {
      marks.at(position, kInside) = 1;
      if (event.recompute == before) marks.at(position - 1, kJoined) = 1;
    }
    before = event.recompute;
    ++position;
  }
  return marks;
}

bool CallMarks::is_plain() const {
  for (size_t i = 0; i < values_.size() / kMarks; ++i) {
    if (!is_made(i) || is_inside(i)) return false;
  }
  return true;
}

std::optional<size_t> CallMarks::contradiction() const {
  for (size_t i = 0; i < values_.size() / kMarks; ++i) {
    if (is_inside(i) && is_outside(i)) return i;
  }
  return std::nullopt;
}

CallMarks CallMarks::joined_with(const CallMarks& other) const {
  auto values = values_;
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], other.values_[i]);
  return CallMarks(std::move(values));
}

CallOrder without_recomputes(CallOrder order) {
  for (auto& event : order) event.recompute = kNone;
  return order;
}

CallOrder with_recomputes(CallOrder order, const CallMarks& marks) {
  size_t position = 0;
  int32_t first = kNone;
  bool joined = false;  // with the call before
  for (auto& event : order) {
    event.recompute = kNone;
    if (!event.enter) continue;
    if (!joined) first = static_cast<int32_t>(position);
    const bool joins = marks.is_joined(position);
    if (joined || joins || marks.is_inside(position)) event.recompute = first;
    joined = joins;
    ++position;
  }
  return order;
}

namespace {

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

}  // namespace

std::pair<CallOrder, std::vector<int32_t>> without_skipped(
    const CallOrder& order, const CallMarks& marks, size_t units) {
  std::vector<bool> called(units);
  size_t position = 0;
  for (const auto& event : order) {
    if (event.enter && marks.is_made(position++)) called[static_cast<size_t>(event.unit)] = true;
  }
  CallOrder result;
  std::vector<int32_t> new_positions;
  std::vector<bool> stays;  // of the calls that are open
  int32_t next = 0;
  for (const auto& event : order) {
    if (event.enter) {
      const bool made = marks.is_made(new_positions.size());
      stays.push_back(made || !called[static_cast<size_t>(event.unit)]);
      new_positions.push_back(stays.back() ? next++ : kNone);
    }
    if (stays.back()) result.push_back(event);
    if (!event.enter) stays.pop_back();
  }
  return {number_recomputes(std::move(result)), std::move(new_positions)};
}

}  // namespace sherd
