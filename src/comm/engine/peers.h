// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "comm/engine/control_channel.h"
#include "comm/engine/lanes.h"
#include "comm/engine/notice_board.h"
#include "comm/engine/submissions.h"
#include "comm/engine/transport.h"

namespace sherd {

/// The news that ranks exchange apart from the operations: failures,
/// departures, notices, and where a rank is that an operation waits for. Used by the engine's
/// thread alone, except for notices(); only flush() blocks.
class Peers {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// `transport` must outlive it and stay at its address.
  explicit Peers(Transport& transport);

  /// Moves messages, and reads those that have arrived. A rank that asks what this one waits for
  /// gets the description of `own`. Throws if the transport fails.
  void receive(const Lanes& own);

  /// Returns the first failure that another rank announced, but not at once: operations that the
  /// other rank still took part in may complete first.
  std::optional<std::string> failure() const;
  /// Returns an error that names a rank whose connection is lost although it has not left: its
  /// process has ended. Not at once either: the rank may have announced why.
  std::optional<std::string> loss() const;
  /// Throws if the operation waits for a rank that has left without it. Its message names the rank.
  void check_departed(const LaneEntry& entry) const;
  /// For an operation past its time limit: asks the ranks that it waits for where they are, and
  /// once they have answered, or had time to, throws an error with their answers. To be called
  /// until it throws.
  void check_late(LaneEntry& entry);
  /// Returns on which hosts ranks run, to be added to an error that names them; nothing if all
  /// ranks of the world run on one. A few ranks at most are listed.
  std::string text_of_hosts(std::vector<int64_t> ranks) const;
  /// Returns whether every other rank has announced that it leaves.
  bool all_have_left() const;

  /// Sends the error that ended this rank's operations to all ranks. Does not throw: if the
  /// transport itself is broken, the others notice that too.
  void announce_failure(const std::string& error) noexcept;
  /// Tells all ranks that this one starts no more operations, and how many were submitted in each
  /// lane. Only the first call does. Throws if the transport fails.
  void announce_leaving(const Submissions& submissions);
  /// Sends this rank's notice to all ranks if there is a new one. Throws if the transport fails.
  void send_notice();
  /// The notices of all ranks. Any thread.
  NoticeBoard& notices() { return notices_; }
  /// Blocks until all announcements have been sent, or `limit` has passed: the transport sends them
  /// without the receivers' help, but not at once. Does not throw.
  void flush(Milliseconds limit) noexcept;
  /// Receives no more messages. To be called before the transport is finished.
  void close() { control_.close(); }

 private:
  using Time = Operation::Clock::time_point;
  struct Failure {  // also a lost connection
    std::string text;
    Time heard;
  };
  struct Departure {
    Time heard;
    LaneCounts started;  // by that rank
  };

  bool takes_part(int64_t rank, const Departure& departure, const LaneEntry& entry) const;
  bool may_be_in_transit(const Departure& departure, const LaneEntry& entry) const;

  Transport& transport_;
  ControlChannel control_;
  int64_t size_;
  std::optional<Failure> failure_;
  std::map<int64_t, Departure> departures_;  // by rank
  std::map<int64_t, Failure> losses_;        // by rank
  std::map<int64_t, std::string> answers_;   // by rank, to the newest question
  bool leaving_announced_ = false;
  NoticeBoard notices_;
};

}  // namespace sherd
