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

#include "comm/transport.h"
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
/// The thread polls while something is under way and sleeps when nothing is.
///
/// When an operation fails here, its error goes to all ranks, and everything under way or submitted
/// later throws it on each of them: the world can't be used any more, but nobody hangs.
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

  /// The number of the next communicator that this process may open; see MpiCommunicator::do_split.
  /// One thread at a time.
  int64_t next_id() const { return next_id_; }
  void take_id(int64_t id) { next_id_ = id + 1; }

 private:
  static constexpr size_t kFarewell = 1024;  // bytes of an error on its way to the other ranks

  struct Active {
    int lane;
    std::shared_ptr<Operation> operation;
    Milliseconds timeout;
    std::optional<Operation::Clock::time_point> deadline{};  // once it has started
  };

  /// What the transport may still read or write after a failure.
  struct Remains {
    std::vector<std::shared_ptr<Operation>> operations;
    std::vector<char> news = std::vector<char>(kFarewell, '\0');  // an error from another rank
    std::unique_ptr<Transport::Request> news_request;
    std::vector<char> farewell;  // this rank's error, for the others
    std::vector<std::unique_ptr<Transport::Request>> farewell_requests;
    std::unique_ptr<Transport> transport;
  };

  void run();
  bool take_submitted();
  void poll();
  bool step(Active& active);
  void check_peers();
  void fail(const std::string& what);
  void flush_farewell();
  void fail_all(const std::string& what);
  void say_goodbye();

  std::unique_ptr<Remains> remains_ = std::make_unique<Remains>();
  Transport& transport_;
  Milliseconds patience_;
  int64_t rank_;
  int64_t size_;
  int64_t next_id_ = 2;  // 0: control messages, 1: opening a world

  std::mutex mutex_;
  std::condition_variable submitted_changed_;
  std::deque<Active> submitted_;
  std::atomic<bool> has_submitted_{false};
  bool stopping_ = false;
  bool abandoned_ = false;  // an exception is ending this rank

  // Of the thread alone.
  std::map<int, std::deque<Active>> lanes_;
  std::vector<Active> laneless_;
  std::string failure_;
  std::optional<Operation::Clock::time_point> heard_;  // when another rank's error came

  std::thread thread_;
};

}  // namespace sherd
