// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine/lanes.h"
#include "comm/engine/operation.h"
#include "comm/engine/peers.h"
#include "comm/engine/submissions.h"
#include "comm/engine/transport.h"
#include "comm/open_connections.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// The one thread of a process that talks to the transport, for all communicators at once. Callers
/// hand it operations through Submissions; it keeps them in Lanes until they are done, and
/// exchanges news with the engines of other ranks through Peers.
///
/// The thread polls while operations are under way, with short sleeps while none of them moves, and
/// sleeps when there is nothing to do.
///
/// When an operation fails on this rank, its error goes to all ranks, and everything under way or
/// submitted later throws it on each of them: the world can't be used any more, but no rank hangs.
/// A rank that leaves announces it: operations that it will never join end with an error that names
/// it.
class Engine final : public Connection {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// Starts the thread. `patience`: how long leave() waits for ranks that are still at work.
  Engine(std::unique_ptr<Transport> transport, Milliseconds patience);
  /// Calls leave().
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  /// Returns the name of the backend whose transport it uses.
  std::string backend() const { return transport_.name(); }

  /// Hands an operation to the thread and returns at once. Wait for the returned Work before the
  /// operation's tensors are read, written or freed; it throws the operation's error. An operation
  /// that takes longer than `timeout`, from the moment it is the first of its lane, is an error.
  /// Any thread.
  Work submit(int lane, std::shared_ptr<Operation> operation, Milliseconds timeout);

  /// Tells the other ranks that this one leaves, blocks until they all do, and finishes the
  /// transport. Blocks for `patience` at most, after a failure for 20 s at most. Later operations
  /// throw. Any thread, any number of times; does not throw.
  void leave() noexcept override;

  /// See HasNotices. Any thread.
  void leave_notice(const std::string& text);
  std::map<int64_t, std::string> notices() const { return peers_.notices().others(); }

  /// Returns the least number that a communicator opened next may have on this process; see
  /// EngineCommunicator::do_split. One thread at a time.
  int64_t next_communicator_number() const { return next_communicator_number_; }
  /// Marks a number, and all below it, as used. One thread at a time.
  void use_communicator_number(int64_t number) { next_communicator_number_ = number + 1; }

 private:
  /// The transport, and everything that it may still read or write after a failure.
  struct InFlight {
    explicit InFlight(std::unique_ptr<Transport> given)
        : transport(std::move(given)), peers(*transport) {}
    std::unique_ptr<Transport> transport;
    Peers peers;
    std::vector<std::shared_ptr<Operation>> failed_operations;
  };

  // On the thread:
  void run();
  bool take_submissions();
  bool poll();
  bool advance(LaneEntry& entry);
  void check_last_operations(bool moved);
  bool move(LaneEntry& entry);
  void read_news();
  std::string scope() const;
  void fail(const std::string& error);
  void fail_operations();
  void finish_together();
  void finish_after_failure();

  std::unique_ptr<InFlight> in_flight_;
  Transport& transport_;
  Peers& peers_;
  Milliseconds patience_;
  int64_t rank_;
  int64_t size_;
  int64_t next_communicator_number_ = 2;  // 0: control messages, 1: opening a world

  Submissions submissions_;
  Lanes lanes_;
  std::string failure_;  // why nothing can be done any more; empty while all is well
  bool leaving_ = false;
  std::optional<Operation::Clock::time_point> last_moved_;  // since all ranks are leaving
  bool late_ = false;  // an operation of this rank has run into its limit
  std::once_flag left_;
  std::thread thread_;
};

}  // namespace sherd
