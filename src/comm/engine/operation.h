// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/transport.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// One collective, send or receive as a state machine. Any thread may wait for it; the engine's
/// thread alone starts and advances it. It keeps its tensors alive, because the transport
/// reads and writes them until it is finished.
class Operation : public Work::State {
 public:
  using Clock = std::chrono::steady_clock;

  /// How long a thread that waits for a result, or for work, keeps looking before it sleeps: longer
  /// than the pause between two collectives of a chain, much shorter than a step.
  static constexpr std::chrono::microseconds kSpinTime{60};

  /// `scope` is the beginning of its errors; see Communicator::scope.
  explicit Operation(std::string scope) : scope_(std::move(scope)) {}

  /// Blocks until the operation is finished; throws its error, if any. After that its tensors may
  /// be used again. Any thread. The engine's time limit bounds how long it blocks.
  void wait() override;
  void synchronize() override { wait(); }
  /// Returns whether it is finished, with or without an error. Any thread; does not block.
  bool done() override { return done_.load(std::memory_order_acquire); }

  const std::string& scope() const { return scope_; }
  /// Its entry in the flight recorder; 0: none. Set before it is submitted.
  uint64_t flight_entry() const { return flight_entry_; }
  void set_flight_entry(uint64_t number) { flight_entry_ = number; }

  // The functions below are called by the engine's thread, and none of them blocks.

  /// Posts the first messages. Called once, when the operations before it in its lane are done.
  virtual void start(Transport& transport) = 0;
  /// Tests the messages under way and posts those that can follow. Returns true when the result is
  /// complete and the transport uses none of its memory any more. Throws if a message failed.
  virtual bool advance(Transport& transport) = 0;
  /// Returns the world ranks of the messages under way, in ascending order.
  virtual std::vector<int64_t> waits_for() const = 0;
  /// Ends it, with an error unless `error` is null, and wakes the threads that wait. Called once;
  /// by the submitting thread if the operation is never started.
  void finish(std::exception_ptr error);

 private:
  void wait_until_done();

  std::string scope_;
  uint64_t flight_entry_ = 0;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // written before done_, read after it
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace sherd
