// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/lanes.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "comm/flight/flight_ring.h"
#include "comm/time_text.h"

namespace sherd {
namespace {

std::string text_since(LaneEntry::Time begin) {
  const auto passed = Operation::Clock::now() - begin;
  return in_seconds(std::chrono::duration_cast<std::chrono::milliseconds>(passed));
}

/// Returns the operation and communicator that a scope names, without backend and rank.
std::string name_in(const std::string& scope) {
  const auto begin = scope.find(", ");
  const auto end = scope.rfind(": ");
  if (begin == std::string::npos || end < begin) return scope;
  return scope.substr(begin + 2, end - begin - 2);
}

}  // namespace

void Lanes::add(LaneEntry entry) {
  const int lane = entry.lane;
  if (lane == kNone) {
    without_lane_.push_back(std::move(entry));
  } else {
    lanes_[lane].push_back(std::move(entry));
  }
}

std::vector<std::shared_ptr<Operation>> Lanes::fail_all(const std::string& error) {
  std::vector<std::shared_ptr<Operation>> failed;
  const auto fail = [&](const LaneEntry& entry) {
    const auto& operation = entry.operation;
    const bool own = error.starts_with(operation->scope());
    const auto text = own ? error : operation->scope() + error;
    failed.push_back(operation);
    if (auto* ring = FlightRing::current())
      ring->end(operation->flight_entry(), flight::State::failed);
    operation->finish(
        std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, text)));
  };
  for (const auto& [number, lane] : lanes_) std::for_each(lane.begin(), lane.end(), fail);
  std::for_each(without_lane_.begin(), without_lane_.end(), fail);
  lanes_.clear();
  without_lane_.clear();
  return failed;
}

std::string Lanes::describe() const {
  std::vector<std::string> waits;
  const auto add_started = [&](const LaneEntry& entry) {
    if (!entry.begin) return;
    waits.push_back(c10::str(name_in(entry.operation->scope()), " for ", text_since(*entry.begin)));
  };
  for (const auto& [number, lane] : lanes_) add_started(lane.front());
  std::for_each(without_lane_.begin(), without_lane_.end(), add_started);
  if (!waits.empty()) return "waits in " + c10::Join(", ", waits);
  if (last_scope_.empty()) return "has made no operation yet";
  return c10::str(
      "is in no operation; its last, ", name_in(last_scope_), ", ended ", text_since(last_end_),
      " ago");
}

void Lanes::note_last(const Operation& operation) {
  last_scope_ = operation.scope();
  last_end_ = Operation::Clock::now();
}

}  // namespace sherd
