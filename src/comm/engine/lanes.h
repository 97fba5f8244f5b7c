// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/engine/operation.h"

namespace sherd {

/// An operation in its lane, with the times that limit it.
struct LaneEntry {
  using Time = Operation::Clock::time_point;

  int lane;  ///< number of its communicator, or Lanes::kNone
  std::shared_ptr<Operation> operation;
  std::chrono::milliseconds timeout;        ///< counts from `begin`
  int64_t number = 0;                       ///< its index among the operations of its lane
  std::optional<Time> begin{};              ///< when it was started
  std::optional<Time> peers_asked_since{};  ///< when it was late and the other ranks were asked why
};

/// The operations that a rank has not finished. Those of one lane (a communicator) run one after
/// another; lanes run side by side, and so do entries without a lane (sends and receives, which
/// would block each other in one). Used by the engine's thread alone.
class Lanes {
 public:
  static constexpr int kNone = -1;

  bool empty() const { return lanes_.empty() && without_lane_.empty(); }
  void add(LaneEntry entry);

  /// Calls `is_done` with the first entry of each lane and with every entry without one, and
  /// removes those for which it returns true. Returns whether it removed any.
  template <class IsDone>
  bool remove_done(IsDone is_done);

  /// Finishes all operations with an error and removes them. Returns them, for as long as the
  /// transport may still write into their memory.
  std::vector<std::shared_ptr<Operation>> fail_all(const std::string& error);

  /// Describes the operations that this rank waits in, or else its last one, for the errors of
  /// other ranks.
  std::string describe() const;

 private:
  void note_last(const Operation& operation);

  std::map<int, std::deque<LaneEntry>> lanes_;  // none of them empty
  std::vector<LaneEntry> without_lane_;
  std::string last_scope_;  // of the operation that was done last; empty: there was none
  LaneEntry::Time last_end_{};
};

template <class IsDone>
bool Lanes::remove_done(IsDone is_done) {
  bool removed = false;
  const auto checked = [&](LaneEntry& entry) {
    const bool done = is_done(entry);
    if (done) note_last(*entry.operation);
    removed |= done;
    return done;
  };
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    if (checked(lane->second.front())) lane->second.pop_front();
    lane = lane->second.empty() ? lanes_.erase(lane) : std::next(lane);
  }
  std::erase_if(without_lane_, checked);
  return removed;
}

}  // namespace sherd
