// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/control_channel.h"
#include "comm/mpi/transport.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// An operation as a state machine that the engine's thread advances.
class Operation : public Work::State {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Operation(std::string scope) : scope_(std::move(scope)) {}

  void wait() override;
  void synchronize() override { wait(); }
  bool done() override { return done_.load(std::memory_order_acquire); }

  // The rest is called by the engine's thread alone.

  /// Posts its first messages; called once, when those before it on its communicator are done.
  virtual void start(Transport& transport) = 0;
  /// Moves on without blocking; true when the result is there.
  virtual bool advance(Transport& transport) = 0;
  /// The world ranks it waits for, for the error when the time is up.
  virtual std::vector<int64_t> waits_for() const = 0;

  const std::string& scope() const { return scope_; }
  void finish(std::exception_ptr error);

 private:
  std::string scope_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// The one thread of a process that talks to the transport, for all communicators at once.
///
/// Operations of one lane (a communicator) run one after another; lanes run side by side, and so
/// does what is submitted without a lane (sends and receives, which would block each other in one).
/// The thread polls while something is under way, with short sleeps while nothing moves, and sleeps
/// when there is nothing.
///
/// When an operation fails here, its error goes to all ranks, and everything under way or submitted
/// later throws it on each of them: the world can't be used any more, but no rank hangs. A rank
/// that leaves says so, too: operations that it will never join end with an error that names it.
class Engine {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr int kNoLane = -1;

  /// `patience`: how long the end waits for ranks that are still at work.
  Engine(std::unique_ptr<Transport> transport, Milliseconds patience);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  /// Any thread. The operation's error, if any, is thrown by its wait(); one that takes longer than
  /// `timeout`, from the moment it is at the head of its lane, is an error too.
  Work submit(int lane, std::shared_ptr<Operation> operation, Milliseconds timeout);

  /// Tells the other ranks that this one leaves, waits until they all do, and finishes the
  /// transport. After a failure it waits for a few seconds only. Later operations throw. Any
  /// thread, any number of times; does not throw.
  void close() noexcept;

  /// See HasNotices. Any thread.
  void leave_notice(const std::string& text);
  std::map<int64_t, std::string> notices();

  /// The number of the next communicator that this process may open; see MpiCommunicator::do_split.
  /// One thread at a time.
  int64_t next_id() const { return next_id_; }
  void take_id(int64_t id) { next_id_ = id + 1; }

 private:
  using Time = Operation::Clock::time_point;
  using Counts = std::map<int, int64_t>;  // of operations, by lane

  struct Active {
    int lane;
    std::shared_ptr<Operation> operation;
    Milliseconds timeout;
    int64_t number = 0;           // in its lane
    std::optional<Time> begin{};  // once it has started
    std::optional<Time> asked{};  // when it was too late, the other ranks
  };
  struct Departure {
    Time heard;
    Counts started;  // by that rank
  };

  /// What the transport may still read or write after a failure.
  struct InFlight {
    explicit InFlight(std::unique_ptr<Transport> given)
        : transport(std::move(given)), control(*transport) {}
    std::unique_ptr<Transport> transport;
    ControlChannel control;
    std::vector<std::shared_ptr<Operation>> operations;
  };

  void run();
  bool take_submitted();
  bool poll();
  bool step(Active& active);
  void check_time(Active& active);
  void check_departed(const Active& active) const;
  void check_control();
  std::string standing() const;
  void fail(const std::string& what);
  void flush_control(Milliseconds limit);
  void fail_all(const std::string& what);
  void announce_leaving();
  void say_goodbye();
  void finish_after_failure();

  std::unique_ptr<InFlight> remains_;
  Transport& transport_;
  ControlChannel& control_;
  Milliseconds patience_;
  int64_t rank_;
  int64_t size_;
  int64_t next_id_ = 2;  // 0: control messages, 1: opening a world

  std::mutex mutex_;
  std::condition_variable submitted_changed_;
  std::deque<Active> submitted_;
  std::atomic<bool> has_submitted_{false};
  Counts started_;
  std::string own_notice_;                  // not sent yet
  std::map<int64_t, std::string> notices_;  // of the other ranks
  bool stopping_ = false;
  bool abandoned_ = false;  // an exception is ending this rank
  std::once_flag closed_;

  // Of the thread alone.
  std::map<int, std::deque<Active>> lanes_;
  std::vector<Active> laneless_;
  std::string failure_;
  std::string news_;           // another rank's error,
  std::optional<Time> heard_;  // and when it came
  std::map<int64_t, Departure> departed_;
  std::map<int64_t, std::string> answers_;
  std::string last_scope_;  // the operation that ended last,
  Time last_end_ = Operation::Clock::now();
  bool announced_ = false;  // that this rank leaves

  std::thread thread_;
};

}  // namespace sherd
