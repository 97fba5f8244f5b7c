// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

namespace sherd {

/// While it lives, this thread calls `look` whenever it has waited kLongWait for an operation of
/// other ranks, again and again until the operation is done. What `look` throws ends the wait; the
/// operation itself stays under way. Scopes nest: the innermost one counts.
///
/// A CPU backend's waits call it, and loops that poll for operations (see LongWait). Waits of the
/// host for CUDA do not.
class LongWaitScope {
 public:
  /// `look` must outlive the scope.
  explicit LongWaitScope(const std::function<void()>& look) noexcept;
  ~LongWaitScope();
  LongWaitScope(const LongWaitScope&) = delete;
  LongWaitScope& operator=(const LongWaitScope&) = delete;

  /// For code that waits: calls the function of the thread's innermost scope, if there is one.
  static void look();

 private:
  const std::function<void()>* outer_;
};

/// Longer than healthy ranks usually wait for each other, and short for a user who waits.
constexpr std::chrono::seconds kLongWait{1};

/// A loop that polls for operations of other ranks. On each turn it pauses for a moment, because
/// those ranks need the cores, and calls LongWaitScope::look() after every kLongWait.
class LongWait {
 public:
  void pause();

 private:
  std::chrono::steady_clock::time_point next_look_ = std::chrono::steady_clock::now() + kLongWait;
};

}  // namespace sherd
