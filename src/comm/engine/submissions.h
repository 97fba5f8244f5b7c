// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "comm/engine/lanes.h"
#include "comm/engine/operation.h"

namespace sherd {

/// Numbers of operations by lane.
using LaneCounts = std::map<int, int64_t>;

/// The operations that callers have submitted and the engine's thread has not taken yet. Callers
/// submit and stop from any thread; the engine's thread looks, takes and waits.
class Submissions {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// How the callers have ended their submissions.
  struct End {
    bool stopped = false;       ///< stop() was called: nothing is submitted any more
    bool by_exception = false;  ///< an exception was under way when it was
  };

  /// Adds an operation and wakes the engine's thread. After stop() it finishes the operation with
  /// an error instead. Does not block, apart from the lock, which is held for moments. Any thread.
  void add(int lane, std::shared_ptr<Operation> operation, Milliseconds timeout);
  /// Has the engine's thread call take(), though no operation is submitted. Any thread.
  void wake();
  /// Accepts no more operations and wakes the engine's thread. Any thread.
  void stop(bool by_exception);

  /// Returns whether take() has something to do: one atomic load, for the engine's loop.
  bool any() const { return any_.load(std::memory_order_acquire); }
  /// Moves what was submitted into the lanes. After stop(), any() remains true.
  End take(Lanes& lanes);
  /// Blocks until any() or until `limit` has passed; returns any().
  bool wait(Milliseconds limit);
  /// Returns how many operations were submitted in each lane. Final after stop().
  LaneCounts counts() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LaneEntry> entries_;
  std::atomic<bool> any_{false};
  LaneCounts counts_;
  End end_;
};

}  // namespace sherd
